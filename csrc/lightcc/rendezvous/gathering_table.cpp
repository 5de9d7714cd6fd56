#include "lightcc/rendezvous/gathering_table.hpp"

#include <algorithm>
#include <utility>

namespace lightcc {
namespace {

// A job has one gathering for each init(), and few of them fail.
constexpr std::size_t kMaxDeserted = 256;

}  // namespace

void GatheringTable::join(const std::string& prefix, Member member) {
  Gathering& gathering = gatherings_[prefix];
  if (gathering.failure != nullptr && gathering.members.empty()) {
    deserted_ -= std::min<std::size_t>(deserted_, 1);
  }
  gathering.members.insert(member);
}

GatheringTable::Failure GatheringTable::failure(const std::string& prefix) const {
  const auto found = gatherings_.find(prefix);
  return found == gatherings_.end() ? nullptr : found->second.failure;
}

bool GatheringTable::fail(const std::string& prefix, Failure why) {
  forget_old_failures();
  Gathering& gathering = gatherings_[prefix];
  if (gathering.failure != nullptr) {
    return false;
  }
  gathering.failure = std::move(why);
  deserted_ += gathering.members.empty() ? 1 : 0;
  return true;
}

bool GatheringTable::leave(const std::string& prefix, Member member) {
  forget_old_failures();
  const auto found = gatherings_.find(prefix);
  if (found == gatherings_.end() || found->second.members.erase(member) == 0 ||
      !found->second.members.empty()) {
    return false;
  }
  if (found->second.failure == nullptr) {
    gatherings_.erase(found);
  } else {
    ++deserted_;
  }
  return true;
}

const std::set<GatheringTable::Member>& GatheringTable::members(const std::string& prefix) const {
  static const std::set<Member> kNobody;
  const auto found = gatherings_.find(prefix);
  return found == gatherings_.end() ? kNobody : found->second.members;
}

void GatheringTable::forget_old_failures() {
  if (deserted_ < kMaxDeserted) {
    return;
  }
  std::erase_if(gatherings_, [](const auto& entry) {
    return entry.second.members.empty() && entry.second.failure != nullptr;
  });
  deserted_ = 0;
}

}  // namespace lightcc
