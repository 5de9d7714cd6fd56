#include "lightcc/rendezvous/round_table.hpp"

#include <algorithm>
#include <utility>

namespace lightcc {
namespace {

// A job has one round for each init(), and few of them fail.
constexpr std::size_t kMaxDeserted = 256;

}  // namespace

void RoundTable::join(const std::string& prefix, Member member) {
  Round& round = rounds_[prefix];
  if (round.failure != nullptr && round.members.empty()) {
    deserted_ -= std::min<std::size_t>(deserted_, 1);
  }
  round.members.insert(member);
}

RoundTable::Failure RoundTable::failure(const std::string& prefix) const {
  const auto found = rounds_.find(prefix);
  return found == rounds_.end() ? nullptr : found->second.failure;
}

bool RoundTable::fail(const std::string& prefix, Failure why) {
  forget_old_failures();
  Round& round = rounds_[prefix];
  if (round.failure != nullptr) {
    return false;
  }
  round.failure = std::move(why);
  deserted_ += round.members.empty() ? 1 : 0;
  return true;
}

bool RoundTable::leave(const std::string& prefix, Member member) {
  forget_old_failures();
  const auto found = rounds_.find(prefix);
  if (found == rounds_.end() || found->second.members.erase(member) == 0 ||
      !found->second.members.empty()) {
    return false;
  }
  if (found->second.failure == nullptr) {
    rounds_.erase(found);
  } else {
    ++deserted_;
  }
  return true;
}

const std::set<RoundTable::Member>& RoundTable::members(const std::string& prefix) const {
  static const std::set<Member> kNobody;
  const auto found = rounds_.find(prefix);
  return found == rounds_.end() ? kNobody : found->second.members;
}

void RoundTable::forget_old_failures() {
  if (deserted_ < kMaxDeserted) {
    return;
  }
  std::erase_if(rounds_, [](const auto& entry) {
    return entry.second.members.empty() && entry.second.failure != nullptr;
  });
  deserted_ = 0;
}

}  // namespace lightcc
