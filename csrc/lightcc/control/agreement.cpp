#include "lightcc/control/agreement.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <limits>

namespace lightcc {
namespace {

// Every text ends by naming the ranks and the tensor: the reader's next question.
Status mismatch(const std::string& what, const Signature& first, int first_rank, int other_rank) {
  return make_error(ErrorCode::kMismatch,
                    "%s (ranks %d and %d, tensor '%s')",
                    what.c_str(),
                    first_rank,
                    other_rank,
                    first.name.c_str());
}

bool same_factor(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

std::string shapes_start(const Signature& signature) {
  return std::string("Mismatched ") + op_type_name(signature.op) + " tensor shapes: One rank sent ";
}

// First dimensions may differ; the others may not.
std::string trailing_shape_mismatch(const Signature& first, const Signature& other) {
  if (first.shape.size() != other.shape.size()) {
    return shapes_start(first) + "a tensor of rank " + std::to_string(first.shape.size()) +
           ", but another rank sent a tensor of rank " + std::to_string(other.shape.size()) + ".";
  }
  for (std::size_t d = 1; d < first.shape.size(); ++d) {
    if (first.shape[d] != other.shape[d]) {
      const std::string dimension = "a tensor with dimension " + std::to_string(d) + " equal to ";
      return shapes_start(first)
          .append(dimension)
          .append(std::to_string(first.shape[d]))
          .append(", but another rank sent ")
          .append(dimension)
          .append(std::to_string(other.shape[d]))
          .append(".");
    }
  }
  return {};
}

std::string full_shape_mismatch(const Signature& first, const Signature& other) {
  if (first.shape == other.shape) {
    return {};
  }
  return shapes_start(first) + "a tensor of shape " + shape_text(first.shape) +
         ", but another rank sent a tensor of shape " + shape_text(other.shape) + ".";
}

std::string dtype_mismatch(const Signature& first, const Signature& other) {
  if (first.dtype == other.dtype) {
    return {};
  }
  return std::string("Mismatched data types: One rank had type ") + data_type_name(first.dtype) +
         ", but another rank had type " + data_type_name(other.dtype) + ".";
}

std::string memory_mismatch(const Signature& first, const Signature& other) {
  if (first.memory == other.memory) {
    return {};
  }
  return std::string("Mismatched memory: One rank brought a tensor in ") +
         memory_kind_name(first.memory) + " memory, but another rank brought one in " +
         memory_kind_name(other.memory) + " memory.";
}

std::string reduction_mismatch(const Signature& first, const Signature& other) {
  if (first.reduce_op != other.reduce_op) {
    return std::string("Mismatched reduction operation: One rank specified ") +
           reduce_op_name(first.reduce_op) + ", but another rank specified " +
           reduce_op_name(other.reduce_op) + ".";
  }
  if (!same_factor(first.prescale, other.prescale) ||
      !same_factor(first.postscale, other.postscale)) {
    return "Mismatched prescale and/or postscale factors: One rank specified " +
           std::to_string(first.prescale) + " and " + std::to_string(first.postscale) +
           ", but another rank specified " + std::to_string(other.prescale) + " and " +
           std::to_string(other.postscale) + ".";
  }
  return {};
}

std::string compression_text(const std::optional<CompressionSpec>& spec) {
  if (!spec) {
    return "no compression";
  }
  if (spec->is_quantized()) {
    const std::string segments =
        spec->segments.empty() ? "" : " in " + std::to_string(spec->segments.size()) + " segments";
    return compressor_name(spec->compressor) + segments;
  }
  return "top-k of ratio " + std::to_string(spec->ratio) + (spec->fp16 ? ", as float16" : "") +
         (spec->two_bits ? ", in 2 bits" : "") + (spec->exact ? ", exact" : "") + ", momentum " +
         std::to_string(spec->momentum) + ", " + std::to_string(spec->warmup_steps) +
         " steps of warm-up";
}

std::string compression_mismatch(const Signature& first, const Signature& other) {
  if (first.compression == other.compression) {
    return {};
  }
  const std::string ones = compression_text(first.compression);
  const std::string others = compression_text(other.compression);
  return "Mismatched compression: One rank specified " + ones + ", but another rank specified " +
         (ones == others ? "segments of other sizes" : others) + ".";
}

std::string root_mismatch(const Signature& first, const Signature& other) {
  if (first.root_or_peer == other.root_or_peer) {
    return {};
  }
  return "Mismatched BROADCAST root ranks: One rank specified root rank " +
         std::to_string(first.root_or_peer) + ", but another rank specified root rank " +
         std::to_string(other.root_or_peer) + ".";
}

std::string group_mismatch(const Signature& first, const Signature& other) {
  if (first.group == other.group && first.group_size == other.group_size) {
    return {};
  }
  return "Mismatched groups: One rank put the tensor in group '" + first.group + "' of " +
         std::to_string(first.group_size) + ", but another rank put it in group '" + other.group +
         "' of " + std::to_string(other.group_size) + ".";
}

std::string fusion_mismatch(const Signature& first, const Signature& other) {
  if (first.fusion == other.fusion) {
    return {};
  }
  return "Mismatched fusion: One rank asked for " + fusion_text(first.fusion) +
         ", but another rank asked for " + fusion_text(other.fusion) + ".";
}

std::string first_difference(const Signature& first, const Signature& other) {
  if (std::string text = dtype_mismatch(first, other); !text.empty()) {
    return text;
  }
  std::string text = memory_mismatch(first, other);
  if (!text.empty()) {
    return text;
  }
  switch (first.op) {
    case OpType::kAllreduce:
      text = full_shape_mismatch(first, other);
      break;
    case OpType::kBroadcast:
      text = root_mismatch(first, other);
      if (text.empty()) {
        text = full_shape_mismatch(first, other);
      }
      break;
    case OpType::kReducescatter:
      text = full_shape_mismatch(first, other);
      break;
    case OpType::kAllgather:
    case OpType::kAlltoall:
      text = trailing_shape_mismatch(first, other);
      break;
    default:
      break;
  }
  if (text.empty()) {
    text = reduction_mismatch(first, other);
  }
  if (text.empty()) {
    text = compression_mismatch(first, other);
  }
  if (text.empty()) {
    text = fusion_mismatch(first, other);
  }
  return text.empty() ? group_mismatch(first, other) : text;
}

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::int64_t element_count(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  bool overflow = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) {
      return -1;
    }
    overflow = __builtin_mul_overflow(count, dimension, &count) || overflow;
    if (dimension == 0) {
      return 0;
    }
  }
  return overflow ? -1 : count;
}

std::uint64_t byte_count(const Signature& signature) {
  return static_cast<std::uint64_t>(element_count(signature.shape)) * element_size(signature.dtype);
}

bool has_wide_sums(const Signature& signature) {
  const bool is_byte = signature.dtype == DataType::kInt8 || signature.dtype == DataType::kUint8;
  return is_byte && signature.reduce_op == ReduceOp::kAverage;
}

std::string key_of(std::uint32_t process_set, const std::string& name) {
  std::string key;
  set_key(key, process_set, name);
  return key;
}

void set_key(std::string& key, std::uint32_t process_set, const std::string& name) {
  std::array<char, std::numeric_limits<std::uint32_t>::digits10 + 1> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), process_set).ptr;
  key.clear();
  key.reserve(static_cast<std::size_t>(end - digits.data()) + 1 + name.size());
  key.append(digits.data(), end).append(1, '/').append(name);
}

Status check_agreement(const Signature& first,
                       int first_rank,
                       const Signature& other,
                       int other_rank) {
  if (first.op != other.op) {
    std::string text = std::string("Mismatched operations: One rank did an ") +
                       op_type_name(first.op) + ", but another rank did an " +
                       op_type_name(other.op) + ".";
    if (std::minmax(first.op, other.op) == std::minmax(OpType::kAllreduce, OpType::kAllgather)) {
      text += " A sparse gradient is gathered; one that is missing or dense is reduced.";
    }
    return mismatch(text, first, first_rank, other_rank);
  }
  const std::string text = first_difference(first, other);
  return text.empty() ? Status() : mismatch(text, first, first_rank, other_rank);
}

Status check_transfer(const Signature& first,
                      int first_rank,
                      const Signature& other,
                      int other_rank) {
  const bool pair = (first.op == OpType::kSend && other.op == OpType::kRecv) ||
                    (first.op == OpType::kRecv && other.op == OpType::kSend);
  if (!pair || first.root_or_peer != other_rank || other.root_or_peer != first_rank) {
    return mismatch(std::string("Mismatched transfer: One rank did a ") + op_type_name(first.op) +
                        " with rank " + std::to_string(first.root_or_peer) +
                        ", but another rank did a " + op_type_name(other.op) + " with rank " +
                        std::to_string(other.root_or_peer) + ".",
                    first,
                    first_rank,
                    other_rank);
  }
  std::string text = dtype_mismatch(first, other);
  if (text.empty()) {
    text = memory_mismatch(first, other);
  }
  if (text.empty()) {
    text = full_shape_mismatch(first, other);
  }
  return text.empty() ? Status() : mismatch(text, first, first_rank, other_rank);
}

}  // namespace lightcc
