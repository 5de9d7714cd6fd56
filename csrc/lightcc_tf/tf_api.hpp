// The part of TensorFlow's C API that kernels need, declared anew.
//
// No header of TensorFlow is included and nothing is linked with it, so that one library serves
// every TensorFlow from 2.14 on: functions are looked up by name in the TensorFlow of the process.
// Source: tensorflow/c/{kernels,ops,tf_tensor,tf_status}.h, which keep their ABI.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lightcc/base/status.hpp"

namespace lightcc::tf {

// Opaque, and only ever pointed to.
struct TfStatus;
struct TfTensor;
struct OpDefinitionBuilder;
struct ShapeInferenceContext;
struct ShapeHandle;
struct KernelBuilder;
struct KernelConstruction;
struct KernelContext;
struct AsyncDone;

/// TF_StringView: text that is not the reader's.
struct TextView {
  const char* data;
  std::size_t length;
};

/// TF_Code, of what kernels report.
enum class TfCode : int {
  kOk = 0,
  kUnknown = 2,
  kInvalidArgument = 3,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
  kInternal = 13,
};

/// TF_DataType, of what the engine knows.
enum class TfType : int {
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kInt64 = 9,
  kBool = 10,
  kBfloat16 = 14,
  kUint16 = 17,
  kHalf = 19,
};

using InferShapes = void (*)(ShapeInferenceContext*, TfStatus*);
using CreateKernel = void* (*)(KernelConstruction*);
using DeleteKernel = void (*)(void*);
using Compute = void (*)(void*, KernelContext*);
using ComputeAsync = void (*)(void*, KernelContext*, AsyncDone*);

// Member, symbol, result, arguments.
#define LIGHTCC_TF_FUNCTIONS(X)                                                                   \
  X(new_status, "TF_NewStatus", TfStatus*, ())                                                    \
  X(delete_status, "TF_DeleteStatus", void, (TfStatus*))                                          \
  X(set_status, "TF_SetStatus", void, (TfStatus*, TfCode, const char*))                           \
  X(get_code, "TF_GetCode", TfCode, (const TfStatus*))                                            \
  X(message, "TF_Message", const char*, (const TfStatus*))                                        \
  X(new_op, "TF_NewOpDefinitionBuilder", OpDefinitionBuilder*, (const char*))                     \
  X(add_attribute, "TF_OpDefinitionBuilderAddAttr", void, (OpDefinitionBuilder*, const char*))    \
  X(add_input, "TF_OpDefinitionBuilderAddInput", void, (OpDefinitionBuilder*, const char*))       \
  X(add_output, "TF_OpDefinitionBuilderAddOutput", void, (OpDefinitionBuilder*, const char*))     \
  X(set_is_stateful, "TF_OpDefinitionBuilderSetIsStateful", void, (OpDefinitionBuilder*, bool))   \
  X(set_shape_function,                                                                           \
    "TF_OpDefinitionBuilderSetShapeInferenceFunction",                                            \
    void,                                                                                         \
    (OpDefinitionBuilder*, InferShapes))                                                          \
  X(register_op, "TF_RegisterOpDefinition", void, (OpDefinitionBuilder*, TfStatus*))              \
  X(shape_input_count,                                                                            \
    "TF_ShapeInferenceContextNumInputs",                                                          \
    std::int64_t,                                                                                 \
    (ShapeInferenceContext*))                                                                     \
  X(new_shape, "TF_NewShapeHandle", ShapeHandle*, ())                                             \
  X(delete_shape, "TF_DeleteShapeHandle", void, (ShapeHandle*))                                   \
  X(get_input_shape,                                                                              \
    "TF_ShapeInferenceContextGetInput",                                                           \
    void,                                                                                         \
    (ShapeInferenceContext*, int, ShapeHandle*, TfStatus*))                                       \
  X(set_output_shape,                                                                             \
    "TF_ShapeInferenceContextSetOutput",                                                          \
    void,                                                                                         \
    (ShapeInferenceContext*, int, ShapeHandle*, TfStatus*))                                       \
  X(scalar_shape, "TF_ShapeInferenceContextScalar", ShapeHandle*, (ShapeInferenceContext*))       \
  X(vector_shape,                                                                                 \
    "TF_ShapeInferenceContextVectorFromSize",                                                     \
    ShapeHandle*,                                                                                 \
    (ShapeInferenceContext*, std::size_t))                                                        \
  X(is_rank_known,                                                                                \
    "TF_ShapeInferenceContextRankKnown",                                                          \
    int,                                                                                          \
    (ShapeInferenceContext*, ShapeHandle*))                                                       \
  X(with_rank_at_least,                                                                           \
    "TF_ShapeInferenceContextWithRankAtLeast",                                                    \
    void,                                                                                         \
    (ShapeInferenceContext*, ShapeHandle*, std::int64_t, ShapeHandle*, TfStatus*))                \
  X(sub_shape,                                                                                    \
    "TF_ShapeInferenceContextSubshape",                                                           \
    void,                                                                                         \
    (ShapeInferenceContext*, ShapeHandle*, std::int64_t, std::int64_t, ShapeHandle*, TfStatus*))  \
  X(concatenate_shapes,                                                                           \
    "TF_ShapeInferenceContextConcatenateShapes",                                                  \
    void,                                                                                         \
    (ShapeInferenceContext*, ShapeHandle*, ShapeHandle*, ShapeHandle*, TfStatus*))                \
  X(new_kernel,                                                                                   \
    "TF_NewKernelBuilder",                                                                        \
    KernelBuilder*,                                                                               \
    (const char*, const char*, CreateKernel, Compute, DeleteKernel))                              \
  X(new_async_kernel,                                                                             \
    "TF_NewAsyncKernelBuilder",                                                                   \
    KernelBuilder*,                                                                               \
    (const char*, const char*, CreateKernel, ComputeAsync, DeleteKernel))                         \
  X(set_host_memory, "TF_KernelBuilder_HostMemory", void, (KernelBuilder*, const char*))          \
  X(register_kernel, "TF_RegisterKernelBuilder", void, (const char*, KernelBuilder*, TfStatus*))  \
  X(construction_failure,                                                                         \
    "TF_OpKernelConstruction_Failure",                                                            \
    void,                                                                                         \
    (KernelConstruction*, TfStatus*))                                                             \
  X(node_name, "TF_OpKernelConstruction_GetName", TextView, (KernelConstruction*))                \
  X(attribute_size,                                                                               \
    "TF_OpKernelConstruction_GetAttrSize",                                                        \
    void,                                                                                         \
    (KernelConstruction*, const char*, std::int32_t*, std::int32_t*, TfStatus*))                  \
  X(text_attribute,                                                                               \
    "TF_OpKernelConstruction_GetAttrString",                                                      \
    void,                                                                                         \
    (KernelConstruction*, const char*, char*, std::size_t, TfStatus*))                            \
  X(text_list_attribute,                                                                          \
    "TF_OpKernelConstruction_GetAttrStringList",                                                  \
    void,                                                                                         \
    (KernelConstruction*, const char*, char**, std::size_t*, int, void*, std::size_t, TfStatus*)) \
  X(integer_attribute,                                                                            \
    "TF_OpKernelConstruction_GetAttrInt64",                                                       \
    void,                                                                                         \
    (KernelConstruction*, const char*, std::int64_t*, TfStatus*))                                 \
  X(bool_attribute,                                                                               \
    "TF_OpKernelConstruction_GetAttrBool",                                                        \
    void,                                                                                         \
    (KernelConstruction*, const char*, unsigned char*, TfStatus*))                                \
  X(input_count, "TF_NumInputs", int, (KernelContext*))                                           \
  X(get_input, "TF_GetInput", void, (KernelContext*, int, TfTensor**, TfStatus*))                 \
  X(forward_or_allocate,                                                                          \
    "TF_ForwardInputOrAllocateOutput",                                                            \
    TfTensor*,                                                                                    \
    (KernelContext*, const int*, int, int, const std::int64_t*, int, int*, TfStatus*))            \
  X(allocate_output,                                                                              \
    "TF_AllocateOutput",                                                                          \
    TfTensor*,                                                                                    \
    (KernelContext*, int, TfType, const std::int64_t*, int, std::size_t, TfStatus*))              \
  X(kernel_failure, "TF_OpKernelContext_Failure", void, (KernelContext*, TfStatus*))              \
  X(run_done, "TF_RunAsyncOpKernelDoneCallback", void, (AsyncDone*))                              \
  X(delete_tensor, "TF_DeleteTensor", void, (TfTensor*))                                          \
  X(tensor_type, "TF_TensorType", TfType, (const TfTensor*))                                      \
  X(dimension_count, "TF_NumDims", int, (const TfTensor*))                                        \
  X(dimension, "TF_Dim", std::int64_t, (const TfTensor*, int))                                    \
  X(tensor_data, "TF_TensorData", void*, (const TfTensor*))

// NOLINTBEGIN(bugprone-macro-parentheses): a type and a list of parameters take none.
#define LIGHTCC_TF_MEMBER(member, symbol, result, arguments) result(*member) arguments = nullptr;
// NOLINTEND(bugprone-macro-parentheses)

/// The functions, by what they do.
struct Api {
  LIGHTCC_TF_FUNCTIONS(LIGHTCC_TF_MEMBER)
};
#undef LIGHTCC_TF_MEMBER

/// Looks the functions up. kUnimplemented: TensorFlow is not loaded, or has one no more; named.
Status load_api();
/// Valid after load_api().
const Api& api();

/// TensorFlow's way to say how a call went, owned.
class CallStatus {
 public:
  CallStatus() : status_(api().new_status()) {}
  ~CallStatus() { api().delete_status(status_); }
  CallStatus(const CallStatus&) = delete;
  CallStatus& operator=(const CallStatus&) = delete;

  TfStatus* get() { return status_; }
  bool ok() const { return api().get_code(status_) == TfCode::kOk; }
  void set(TfCode code, const char* message) { api().set_status(status_, code, message); }
  /// As an error of the engine's; `what` says what was tried.
  Status to_status(const char* what) const;

 private:
  TfStatus* status_;
};

}  // namespace lightcc::tf
