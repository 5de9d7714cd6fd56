// What NCCL is given of a bucket: tensors side by side in one buffer, so that one call carries
// them. It divides a call among its channels, and small calls take the time of their latency.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/group.hpp"

#include "lightcc_cuda/nccl/comms.hpp"

namespace lightcc::cuda {

/// Tensors and their places in a buffer of the GPU.
class Packing {
 public:
  /// Null: nothing is copied, neither way.
  void add(const std::byte* tensor, std::size_t offset, std::size_t bytes);
  /// Returns the buffer. What no tensor is copied to is zeros where a tensor is null.
  Result<std::byte*> pack(const NcclCalls& calls, std::size_t bytes) const;
  Status unpack(const NcclCalls& calls, std::byte* buffer) const {
    return calls.copy_bucket(buffer, parts_, Copying::kUnpack);
  }

 private:
  std::vector<BucketPart> parts_;
  bool is_whole_ = true;
};

/// Where a tensor begins in a buffer: as vectors may.
constexpr std::size_t padded(std::size_t bytes) {
  constexpr std::size_t kVectorBytes = 16;
  return (bytes + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
}

/// Tensors that are all-reduced by one call.
using Run = std::span<TensorSpan>;
/// The first of them, up to what a buffer takes; one at least.
Run first_run(Run tensors, std::size_t element);

/// A part of a tensor that belongs to one member.
struct Piece {
  const std::byte* in;
  std::byte* out;
  std::size_t count;
  std::size_t member;
  std::size_t begin;  ///< In what belongs to that member.
};

/// A bucket, cut into what belongs to each member.
struct Pieces {
  std::vector<Piece> list;
  std::size_t element;
  std::size_t members;
  std::size_t max_count = 0;  ///< Elements of the member that has most.
  bool is_row = false;        ///< All have so many, side by side in memory.
  bool is_packed = false;     ///< They travel in a buffer, where all have room for so many.

  /// One call carries all of them; else each is one of a group of calls.
  bool is_one_call() const { return is_row || is_packed; }
  std::size_t slot_bytes() const { return max_count * element; }
  std::size_t bytes() const { return slot_bytes() * members; }
  /// The slots of `tensor`, an end of each piece, or of the pieces of one member alone.
  template <typename Tensor>
  Packing packing_of(Tensor Piece::* tensor,
                     std::optional<std::size_t> member = std::nullopt) const {
    Packing packing;
    for (const Piece& piece : list) {
      if (piece.member == member.value_or(piece.member)) {
        packing.add(piece.*tensor,
                    slot_bytes() * piece.member + piece.begin * element,
                    piece.count * element);
      }
    }
    return packing;
  }
};

/// Cuts the elements of `tensors`, one after another, into `counts`. How they travel is the same on
/// all ranks, since it depends on counts alone.
Pieces cut(const std::vector<TensorSpan>& tensors,
           const std::vector<std::size_t>& counts,
           std::size_t element);

/// Puts memory in the place of what a member that has joined does not have: its input is zeros, and
/// nobody wants its result.
template <typename Part>
Status fill_in(const NcclCalls& calls, std::size_t element, std::span<Part> parts) {
  std::size_t bytes = 0;
  for (const Part& part : parts) {
    bytes += part.in == nullptr || part.out == nullptr ? part.count * element : 0;
  }
  if (bytes == 0) {
    return {};
  }
  LIGHTCC_ASSIGN_OR_RETURN(std::byte * next, calls.zeros(bytes));
  for (Part& part : parts) {
    if (part.in == nullptr || part.out == nullptr) {
      part.in = part.in == nullptr ? next : part.in;
      part.out = part.out == nullptr ? next : part.out;
      next += part.count * element;
    }
  }
  return {};
}

}  // namespace lightcc::cuda
