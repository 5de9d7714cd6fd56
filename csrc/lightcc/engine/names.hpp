// How operations are called: the only place that spells a name, for every front end.
//
// An operation that its caller named is "<kind>.<name>". One without a name is "noname.<n>", where
// n counts such operations of the process set, so ranks must submit them in one order. The kind is
// not in it: ranks that do different things at one place in that order mean one name, and hear of
// the mismatch. In a sequence it is "<sequence>.noname.<n>", with a count of its own, or
// "<sequence>.<name>".
// Members of a group with one name are "grouped_<kind>.<name>_<i>of<n>". Without a name, or in a
// sequence, the first one is called as an operation alone, so that it meets such a one.
// Messages carry both ranks in their name, "sendrecv.<from>to<to>", and are counted for the pair.
//
// A receive from any source does not know that pair. It is *open*: it has a name of its own,
// without a source, until rank 0 has found its message. Until then the receiver cannot number a
// later receive of that sequence either, whatever source it names: that one is open, too.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "lightcc/engine/operation.hpp"

namespace lightcc {

struct Name {
  std::string text;
  bool is_automatic = false;  ///< Numbered: it never comes back, so it takes no slot.
  bool has_no_kind = false;   ///< Other kinds of operations may have the same one.
  std::string mailbox{};      ///< Signature::mailbox.
};

/// Thread: one at a time.
class Names {
 public:
  explicit Names(int rank) : rank_(rank) {}

  /// The name of `operation`, or with `grouped` that of a group of its kind. Counts a number up.
  Name make(const Operation& operation, bool grouped);
  /// Gives back the number that the last make() for `operation` took: it was not submitted.
  void take_back(const Operation& operation);
  /// The message of `operation`, an open receive, comes from `source`: it is one of that pair.
  void found_source(const Operation& operation, int source);
  /// `operation`, an open receive, ended without a message.
  void close(const Operation& operation);
  /// Counts from zero again, as all ranks do when all have joined.
  void reset() { counts_.clear(); }

 private:
  // Who must agree on the order of unnamed operations: a process set, or two ranks of it, for each
  // sequence.
  struct Scope {
    std::uint32_t process_set = 0;
    int source = -1;
    int destination = -1;
    std::string sequence;
    auto operator<=>(const Scope&) const = default;
  };
  Scope scope_of(const Operation& operation) const;
  bool has_unknown_source(const Operation& operation) const;

  int rank_;
  std::map<Scope, std::uint64_t> counts_;
  std::map<Scope, std::size_t> open_;  // Open receives in flight, of any source.
};

/// The name of member `index` of `count` in the group called `group`.
Name member_name(const Name& group, std::size_t index, std::size_t count);

}  // namespace lightcc
