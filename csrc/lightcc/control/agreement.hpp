// Do the ranks of one operation mean the same thing? Pure functions; the texts are Horovod's. And
// what they have agreed on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/wire/control_messages.hpp"

namespace lightcc {

/// One tensor as its process set's members have agreed on it.
struct AgreedTensor {
  Signature signature;
  std::vector<std::int64_t> per_member;  ///< See AnnouncedTensor.
};

/// "[2, 3]".
std::string shape_text(const std::vector<std::int64_t>& shape);
/// Elements of a tensor of this shape; -1 when a dimension is negative or the product overflows.
std::int64_t element_count(const std::vector<std::int64_t>& shape);
/// Bytes of a tensor. Its shape has an element count.
std::uint64_t byte_count(const Signature& signature);
/// Whether sums of a reduction travel as int32: those of int8 and uint8 rarely fit, averages do.
bool has_wide_sums(const Signature& signature);
/// What operations are matched by: the process set and the name.
std::string key_of(std::uint32_t process_set, const std::string& name);
/// The same, into a string that is used again and again.
void set_key(std::string& key, std::uint32_t process_set, const std::string& name);

/// Ok, or kMismatch saying how `other` (asked for by `other_rank`) differs from `first`.
Status check_agreement(const Signature& first,
                       int first_rank,
                       const Signature& other,
                       int other_rank);
/// The same for the two ends of a transfer: one send and one recv that name each other.
Status check_transfer(const Signature& first,
                      int first_rank,
                      const Signature& other,
                      int other_rank);

}  // namespace lightcc
