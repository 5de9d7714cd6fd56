// Element types, reduction operators and operation kinds: the numbers that cross the wire and the
// Python boundary. Values 0..9 of DataType and all of ReduceOp are Horovod's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lightcc/base/export.hpp"

namespace lightcc {

enum class DataType : std::uint8_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,
  kBfloat16 = 10,
};
inline constexpr std::uint8_t kDataTypeCount = 11;

/// Whose memory a tensor lies in.
enum class MemoryKind : std::uint8_t {
  kHost = 0,  ///< What the CPU reads and writes; pinned memory is of this kind.
  kCuda = 1,  ///< Memory of a CUDA device.
};
inline constexpr std::uint8_t kMemoryKindCount = 2;

enum class ReduceOp : std::uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
};
inline constexpr std::uint8_t kReduceOpCount = 6;

/// What a rank asks for. `kSend` and `kRecv` of one name match each other.
enum class OpType : std::uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kAlltoall = 3,
  kReducescatter = 4,
  kSend = 5,
  kRecv = 6,
  kBarrier = 7,
  kJoin = 8,
  kAddProcessSet = 9,
  kRemoveProcessSet = 10,
};
inline constexpr std::uint8_t kOpTypeCount = 11;

/// Between two ranks.
constexpr bool is_transfer(OpType op) {
  return op == OpType::kSend || op == OpType::kRecv;
}

/// What a ready tensor may share its bucket with. Only all-reduces share.
enum class FusionRule : std::uint8_t {
  kDefault = 0,  ///< As the world is set up.
  kNone = 1,     ///< Nothing, not even with members of its group.
  kAuto = 2,     ///< Whatever is ready beside it, up to a limit.
  kHorovod = 3,  ///< The same, but looked for once in a cycle only.
  kPlanned = 4,  ///< All of its group and nothing else.
};
inline constexpr std::uint8_t kFusionRuleCount = 5;

struct FusionWish {
  FusionRule rule = FusionRule::kDefault;
  std::uint64_t limit_bytes = 0;  ///< Used by kAuto only.
  bool operator==(const FusionWish&) const = default;
};

constexpr std::size_t element_size(DataType dtype) {
  switch (dtype) {
    case DataType::kUint8:
    case DataType::kInt8:
    case DataType::kBool:
      return 1;
    case DataType::kUint16:
    case DataType::kInt16:
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
    case DataType::kInt32:
    case DataType::kFloat32:
      return 4;
    case DataType::kInt64:
    case DataType::kFloat64:
      return 8;
  }
  return 0;
}

constexpr bool is_floating_point(DataType dtype) {
  return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16 ||
         dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
}

/// What travels in the place of elements (docs/inside/algorithms.md).
enum class Compressor : std::uint8_t {
  kTopk = 0,  ///< The elements of largest magnitude only.
  kInt8 = 1,  ///< All of them, in 8 bits each, with a scale for each block of 128.
  kInt4 = 2,  ///< The same in 4 bits.
};
inline constexpr std::uint8_t kCompressorCount = 3;

/// How many bits an element takes; 0 for compressors that do not send all of them.
constexpr unsigned bits_of(Compressor compressor) {
  switch (compressor) {
    case Compressor::kTopk:
      break;
    case Compressor::kInt8:
      return 8;
    case Compressor::kInt4:
      return 4;
  }
  return 0;
}

/// The compressor that sends all elements in `bits` bits each; kTopk where there is none.
constexpr Compressor compressor_of(std::int64_t bits) {
  return bits == 8 ? Compressor::kInt8 : bits == 4 ? Compressor::kInt4 : Compressor::kTopk;
}

/// A stretch of a row whose elements travel alike, apart from those of its neighbours.
struct RowSegment {
  std::uint64_t elements = 0;  ///< At least one.
  unsigned bits = 0;           ///< An element takes so many: 8 or 4. 0: as it is.
  bool operator==(const RowSegment&) const = default;
  bool is_valid() const {
    return elements > 0 && (bits == 0 || compressor_of(bits) != Compressor::kTopk);
  }
};

/// How an operation is compressed between hosts. What does not travel is kept for the next time.
struct CompressionSpec {
  Compressor compressor = Compressor::kTopk;
  // Only top-k uses these; others leave them as they are here.
  double ratio = 0.01;             ///< Share of the elements that is sent, in (0, 1].
  double momentum = 0.0;           ///< Factor of the momentum correction, in [0, 1); 0: none.
  std::uint32_t warmup_steps = 0;  ///< The share falls from 25% to `ratio`.
  bool fp16 = false;               ///< Values travel as float16.
  bool two_bits = false;           ///< As signs and means of two classes; not with fp16.
  bool exact = false;              ///< Exactly the share; else about as many.
  /// They cut what each rank gives to an all-gather, or gets of a reduce-scatter. Empty: one cut.
  std::vector<RowSegment> segments{};

  bool operator==(const CompressionSpec&) const = default;
  bool is_quantized() const { return bits_of(compressor) != 0; }
  /// Whether every field is in its range.
  bool is_valid() const {
    if (is_quantized()) {
      return *this == CompressionSpec{.compressor = compressor, .segments = segments};
    }
    return segments.empty() && !(fp16 && two_bits) && ratio > 0.0 && ratio <= 1.0 &&
           momentum >= 0.0 && momentum < 1.0;
  }
};

/// "float32", "bool", ...: numpy's names.
LIGHTCC_EXPORT const char* data_type_name(DataType dtype);
/// "host", "cuda".
const char* memory_kind_name(MemoryKind kind);
/// "ALLREDUCE", ...: as Horovod's messages spell them.
const char* op_type_name(OpType op);
/// "SUM", "AVERAGE", ...
const char* reduce_op_name(ReduceOp op);
/// "top-k", "int8", "int4".
const char* compressor_name(Compressor compressor);

/// "auto_fusion of at most 1024 bytes", ...
std::string fusion_text(const FusionWish& wish);

/// Whether `op` is defined on `dtype`: bool has Min, Max and Product only (and, or, and); Adasum
/// needs a floating-point type.
constexpr bool is_reducible(DataType dtype, ReduceOp op) {
  if (dtype == DataType::kBool) {
    return op == ReduceOp::kMin || op == ReduceOp::kMax || op == ReduceOp::kProduct;
  }
  return op != ReduceOp::kAdasum || is_floating_point(dtype);
}

}  // namespace lightcc
