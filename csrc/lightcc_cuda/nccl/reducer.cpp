#include "lightcc_cuda/nccl/reducer.hpp"

#include "lightcc_cuda/kernels/reduce.hpp"

namespace lightcc::cuda {
namespace {

/// `op` may be an average, which `is_scaled` then.
Reducer reducer_of(DataType dtype,
                   ReduceOp op,
                   bool is_scaled,
                   std::size_t members,
                   const KernelReductions& kernels) {
  if (op == ReduceOp::kAdasum || !is_reducible(dtype, op)) {
    return Reducer::kNone;
  }
  const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kAverage;
  const bool is_for_nccl = nccl_type_of(dtype).has_value() &&
                           (!is_scaled || (is_sum && is_floating_point(dtype))) &&
                           !(kernels.in_rank_order && is_floating_point(dtype));
  if (is_for_nccl) {
    return Reducer::kNccl;
  }
  return kernels.are_loaded && members <= kMaxReduceSources ? Reducer::kKernel : Reducer::kNone;
}

}  // namespace

std::optional<NcclType> nccl_type_of(DataType dtype) {
  switch (dtype) {
    case DataType::kUint8:
      return kNcclUint8;
    case DataType::kInt8:
      return kNcclInt8;
    case DataType::kInt32:
      return kNcclInt32;
    case DataType::kInt64:
      return kNcclInt64;
    case DataType::kFloat16:
      return kNcclFloat16;
    case DataType::kFloat32:
      return kNcclFloat32;
    case DataType::kFloat64:
      return kNcclFloat64;
    case DataType::kBfloat16:
      return kNcclBfloat16;
    default:
      return std::nullopt;
  }
}

bool has_factors(double prescale, double postscale) {
  return prescale != 1.0 || postscale != 1.0;
}

Reducer reducer_of(const Reduction& reduction,
                   std::size_t members,
                   const KernelReductions& kernels) {
  return is_elementwise(reduction)
             ? reducer_of(reduction.dtype,
                          reduction.op,
                          has_factors(reduction.prescale, reduction.postscale),
                          members,
                          kernels)
             : Reducer::kNone;
}

Reducer reducer_of(const Signature& signature,
                   std::size_t members,
                   const KernelReductions& kernels) {
  const bool is_scaled = signature.reduce_op == ReduceOp::kAverage ||
                         has_factors(signature.prescale, signature.postscale);
  return reducer_of(signature.dtype, signature.reduce_op, is_scaled, members, kernels);
}

bool is_for_nccl(const Signature& signature,
                 bool is_compressed,
                 std::size_t members,
                 const KernelReductions& kernels) {
  switch (signature.op) {
    case OpType::kAllgather:
    case OpType::kBroadcast:
    case OpType::kAlltoall:
      return true;
    case OpType::kAllreduce:
    case OpType::kReducescatter:
      return !is_compressed && reducer_of(signature, members, kernels) != Reducer::kNone;
    default:
      return false;
  }
}

}  // namespace lightcc::cuda
