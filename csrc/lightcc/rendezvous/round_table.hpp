// Who has joined each round of a store, and why it failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "lightcc/base/bytes.hpp"

namespace lightcc {

/// Thread: one.
class RoundTable {
 public:
  using Member = std::uint64_t;
  /// Encoded; null: none.
  using Failure = std::shared_ptr<const Bytes>;

  void join(const std::string& prefix, Member member);
  /// Null when it has not failed. One that failed before `member` came counts for it, too.
  Failure failure(const std::string& prefix) const;
  /// False: it has failed before, and that reason stays.
  bool fail(const std::string& prefix, Failure why);
  /// True: nobody is left, so its keys may go.
  bool leave(const std::string& prefix, Member member);
  /// Ascending; empty when there is nobody.
  const std::set<Member>& members(const std::string& prefix) const;

 private:
  struct Round {
    std::set<Member> members;
    Failure failure;
  };
  void forget_old_failures();

  std::map<std::string, Round> rounds_;
  std::size_t deserted_ = 0;  // Failed ones without members: kept for those who come late.
};

}  // namespace lightcc
