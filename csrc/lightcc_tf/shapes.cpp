#include "shapes.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace lightcc::tf {
namespace {

struct ShapeDeleter {
  void operator()(ShapeHandle* shape) const { api().delete_shape(shape); }
};
using Shape = std::unique_ptr<ShapeHandle, ShapeDeleter>;

bool ok(const TfStatus* status) {
  return api().get_code(status) == TfCode::kOk;
}

// A size that TensorFlow takes for "not known".
constexpr auto kUnknown = static_cast<std::size_t>(-1);

Shape vector_of_unknown_size(ShapeInferenceContext* context) {
  return Shape(api().vector_shape(context, kUnknown));
}

void infer_rows(ShapeInferenceContext* context, int index, TfStatus* status) {
  const Shape input(api().new_shape());
  api().get_input_shape(context, index, input.get(), status);
  if (!ok(status)) {
    return;
  }
  if (api().is_rank_known(context, input.get()) == 0) {
    // The output's shape is not known either, which it is from the start.
    api().set_output_shape(context, index, input.get(), status);
    return;
  }
  const Shape rows(api().new_shape());
  api().with_rank_at_least(context, input.get(), 1, rows.get(), status);
  if (!ok(status)) {
    return;
  }
  const Shape rest(api().new_shape());
  api().sub_shape(context, rows.get(), 1, INT64_MAX, rest.get(), status);
  if (!ok(status)) {
    return;
  }
  const Shape output(api().new_shape());
  api().concatenate_shapes(
      context, vector_of_unknown_size(context).get(), rest.get(), output.get(), status);
  if (ok(status)) {
    api().set_output_shape(context, index, output.get(), status);
  }
}

void infer_first(ShapeInferenceContext* context, std::int64_t count, TfStatus* status) {
  for (int i = 0; i < count && ok(status); ++i) {
    const Shape shape(api().new_shape());
    api().get_input_shape(context, i, shape.get(), status);
    if (ok(status)) {
      api().set_output_shape(context, i, shape.get(), status);
    }
  }
}

}  // namespace

void infer_same(ShapeInferenceContext* context, TfStatus* status) {
  infer_first(context, api().shape_input_count(context), status);
}

void infer_same_but_last(ShapeInferenceContext* context, TfStatus* status) {
  infer_first(context, api().shape_input_count(context) - 1, status);
}

void infer_other_rows(ShapeInferenceContext* context, TfStatus* status) {
  const std::int64_t count = api().shape_input_count(context);
  for (int i = 0; i < count && ok(status); ++i) {
    infer_rows(context, i, status);
  }
}

void infer_alltoall(ShapeInferenceContext* context, TfStatus* status) {
  infer_rows(context, 0, status);
  if (ok(status)) {
    api().set_output_shape(context, 1, vector_of_unknown_size(context).get(), status);
  }
}

void infer_scalar(ShapeInferenceContext* context, TfStatus* status) {
  const Shape scalar(api().scalar_shape(context));
  api().set_output_shape(context, 0, scalar.get(), status);
}

void infer_nothing(ShapeInferenceContext* /*context*/, TfStatus* /*status*/) {}

}  // namespace lightcc::tf
