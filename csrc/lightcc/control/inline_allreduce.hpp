// All-reduces so small that the data need no way of their own.
//
// A rank that asks for such an all-reduce, and for nothing else, sends its input beside the
// report. Leaders collect inputs as they collect reports. Rank 0 has all of them at the moment at
// which it would announce the operation. It combines them, and announces the result in the place of
// the operation, so that the negotiation's round trip is all that it takes. Where one input is
// missing, because a rank was busy or has joined, the operation is announced and run as any other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/wire/control_messages.hpp"

namespace lightcc {

/// Larger inputs do not go so.
inline constexpr std::size_t kInlineBytes = std::size_t{4} << 10;
/// The inputs of all members together: what rank 0 takes in for one operation.
inline constexpr std::size_t kMaxInlineTotal = std::size_t{64} << 10;

/// Writes what a group would have computed, bit for bit, into `result`, which has the size of one
/// input. `inputs` are those of `members`, in equal parts of `inputs`, whose rest is not read.
/// False: it is to be run by a group.
using CombineInline = std::function<bool(const Signature& signature,
                                         const std::vector<std::int32_t>& members,
                                         std::span<const std::byte> inputs,
                                         std::span<std::byte> result)>;

/// Whether an input of this all-reduce may go with the report. `max_bytes`: of one input.
bool may_be_inline(const Signature& signature, std::size_t members, std::size_t max_bytes);

/// The inputs that have come for one operation.
class InlineInputs {
 public:
  /// Forgets them, and keeps their memory.
  void clear() {
    bytes_.clear();
    has_.clear();
    count_ = 0;
  }
  /// `index` is the rank's among `members` of them; each input has as many bytes. False: it has
  /// come before.
  bool add(std::size_t index, std::size_t members, std::span<const std::byte> input);
  /// Whether those of all members are there.
  bool are_complete(std::size_t members) const { return count_ == members; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  Bytes bytes_;  // By index.
  std::vector<std::uint8_t> has_;
  std::size_t count_ = 0;
};

}  // namespace lightcc
