// What is known of output shapes before anything runs.
#pragma once

#include "tf_api.hpp"

namespace lightcc::tf {

/// Each output has the shape of its input.
void infer_same(ShapeInferenceContext* context, TfStatus* status);
/// Each output has the shape of its input; the last input has no output.
void infer_same_but_last(ShapeInferenceContext* context, TfStatus* status);
/// As the input, but for the first dimension.
void infer_other_rows(ShapeInferenceContext* context, TfStatus* status);
/// The same for the first input and output; the second output is a vector.
void infer_alltoall(ShapeInferenceContext* context, TfStatus* status);
/// One scalar output.
void infer_scalar(ShapeInferenceContext* context, TfStatus* status);
/// No output.
void infer_nothing(ShapeInferenceContext* context, TfStatus* status);

}  // namespace lightcc::tf
