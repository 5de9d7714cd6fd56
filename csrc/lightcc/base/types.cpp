#include "lightcc/base/types.hpp"

namespace lightcc {

const char* data_type_name(DataType dtype) {
  switch (dtype) {
    case DataType::kUint8:
      return "uint8";
    case DataType::kInt8:
      return "int8";
    case DataType::kUint16:
      return "uint16";
    case DataType::kInt16:
      return "int16";
    case DataType::kInt32:
      return "int32";
    case DataType::kInt64:
      return "int64";
    case DataType::kFloat16:
      return "float16";
    case DataType::kFloat32:
      return "float32";
    case DataType::kFloat64:
      return "float64";
    case DataType::kBool:
      return "bool";
    case DataType::kBfloat16:
      return "bfloat16";
  }
  return "unknown";
}

const char* memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kHost:
      return "host";
    case MemoryKind::kCuda:
      return "cuda";
  }
  return "unknown";
}

const char* op_type_name(OpType op) {
  switch (op) {
    case OpType::kAllreduce:
      return "ALLREDUCE";
    case OpType::kAllgather:
      return "ALLGATHER";
    case OpType::kBroadcast:
      return "BROADCAST";
    case OpType::kAlltoall:
      return "ALLTOALL";
    case OpType::kReducescatter:
      return "REDUCESCATTER";
    case OpType::kSend:
      return "SEND";
    case OpType::kRecv:
      return "RECV";
    case OpType::kBarrier:
      return "BARRIER";
    case OpType::kJoin:
      return "JOIN";
    case OpType::kAddProcessSet:
      return "ADD_PROCESS_SET";
    case OpType::kRemoveProcessSet:
      return "REMOVE_PROCESS_SET";
  }
  return "UNKNOWN";
}

const char* reduce_op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
      return "AVERAGE";
    case ReduceOp::kSum:
      return "SUM";
    case ReduceOp::kAdasum:
      return "ADASUM";
    case ReduceOp::kMin:
      return "MIN";
    case ReduceOp::kMax:
      return "MAX";
    case ReduceOp::kProduct:
      return "PRODUCT";
  }
  return "UNKNOWN";
}

const char* compressor_name(Compressor compressor) {
  switch (compressor) {
    case Compressor::kInt8:
      return "int8";
    case Compressor::kInt4:
      return "int4";
    default:
      return "top-k";
  }
}

std::string fusion_text(const FusionWish& wish) {
  switch (wish.rule) {
    case FusionRule::kDefault:
      return "the world's fusion";
    case FusionRule::kNone:
      return "no fusion";
    case FusionRule::kAuto:
      return "auto_fusion of at most " + std::to_string(wish.limit_bytes) + " bytes";
    case FusionRule::kHorovod:
      return "horovod's fusion";
    case FusionRule::kPlanned:
      return "a planned bucket";
  }
  return "unknown fusion";
}

}  // namespace lightcc
