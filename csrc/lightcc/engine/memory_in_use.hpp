// Memory of the operations in flight: who reads and who writes where.
//
// Two operations on the same memory, one of which writes, have no defined result, and no error
// either. So the second one is refused when it is submitted. Ranges that are written are disjoint,
// as each was refused otherwise: a lookup is that of an ordered map. Ranges that are only read may
// cross; those that do, which are few if any, are looked through one by one. An operation that is
// in flight alone, as each of a sequence is that are waited for, is only noted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/engine/operation.hpp"

namespace lightcc {

/// Thread: one at a time.
class MemoryInUse {
 public:
  explicit MemoryInUse(int rank) : rank_(rank) {}

  /// Takes in what `operation` reads and writes, until remove(). It stays where it is, and has a
  /// name. kInvalidArgument, and nothing is taken in: another one has a part of that memory.
  Status add(const Operation& operation);
  /// `operation` was added and does not use its memory any more.
  void remove(const Operation& operation);
  void clear();

 private:
  struct Range {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    bool empty() const { return begin == end; }
    bool operator==(const Range&) const = default;
  };
  struct User {
    std::uintptr_t end = 0;
    const Operation* operation = nullptr;
  };
  using Users = std::map<std::uintptr_t, User>;  // By where their range begins.
  struct Reader {
    Range range;
    const Operation* operation = nullptr;
  };

  static Range range_of(const TensorRef& tensor);
  static const Operation* find(const Users& users, const Range& range);
  const Operation* find_reader(const Range& range) const;
  Status take_in(const Operation& operation);
  Range written_by(const Operation& operation) const;
  /// `written`: by the same operation.
  static Range read_by(const Operation& operation, const Range& written);
  void insert(Users& users, const Range& range, const Operation& operation);
  void erase(Users& users, Users::iterator user);

  int rank_;
  const Operation* alone_ = nullptr;  // The only one, which is not in what follows.
  Users written_;
  Users read_;                           // Disjoint as well.
  std::vector<Reader> crossing_;         // The other ranges that are read.
  std::vector<Users::node_type> spare_;  // Kept for their memory.
};

}  // namespace lightcc
