// The sequencer's all-or-nothing groups, also where ranks put an operation in different ones.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lightcc/control/agreement.hpp"
#include "lightcc/control/sequencer.hpp"

namespace lightcc {
namespace {

std::string group_key(const Signature& s) {
  return s.group_size == 0 || s.group.empty()
             ? std::string()
             : key_of(s.process_set, s.group) + " of " + std::to_string(s.group_size);
}

// Whether only groups of this name and size have such an operation (engine/names).
bool is_named_after_group(const Signature& s) {
  return s.group_size > 0 && s.name.size() > s.group.size() && s.name.starts_with(s.group + '_');
}

}  // namespace

void Sequencer::complete_group_member(Pending& pending) {
  const std::string key = group_key(pending.common);
  if (const auto broken = broken_groups_.find(key); broken != broken_groups_.end()) {
    pending.error = broken->second.error;
    count_broken(broken);
    finish(pending);
    return;
  }
  GroupState& group = groups_[key];
  if (group.number == 0) {
    group.number = next_group_++;
  }
  pending.group = group.number;
  group.complete.push_back(&pending);
  if (!pending.error.ok() && group.error.ok()) {
    group.error = pending.error;
  }
  if (group.complete.size() < pending.common.group_size) {
    return;
  }
  const GroupState whole = std::move(group);
  groups_.erase(key);
  for (Pending* member : whole.complete) {
    if (member->error.ok()) {
      member->error = whole.error;  // All or nothing.
    }
    finish(*member);
  }
}

void Sequencer::note_group(Pending& pending, const Signature& signature, std::size_t ranks) {
  const bool is_common =
      signature.group_size == pending.common.group_size && signature.group == pending.common.group;
  if (is_common && pending.groups.empty()) {
    return;
  }
  if (pending.groups.empty()) {
    pending.groups.push_back(
        {group_key(pending.common), pending.common.group_size, pending.reported_count});
  }
  std::string key = group_key(signature);
  const auto known = std::ranges::find(pending.groups, key, &GroupOfSome::key);
  if (known == pending.groups.end()) {
    pending.groups.push_back({std::move(key), signature.group_size, ranks});
  } else {
    known->ranks += ranks;
  }
}

// Where ranks put an operation in different groups, none of these becomes whole. What else is in
// them is waited for, as long as there are ranks that will ask for it, and fails.
void Sequencer::break_groups(const Pending& pending) {
  for (const GroupOfSome& some : pending.groups) {
    if (some.key.empty()) {
      continue;
    }
    const auto [broken, is_new] =
        broken_groups_.try_emplace(some.key, BrokenGroup{pending.error, some.ranks, some.size});
    if (is_new) {
      std::vector<Pending*> over = std::move(groups_[some.key].complete);
      groups_.erase(some.key);
      for (const auto& entry : pending_) {
        Pending& other = *entry.second;
        if (!other.ready && group_key(other.common) == some.key && is_complete(other)) {
          other.ready = true;
          over.push_back(&other);
        }
      }
      for (Pending* other : over) {
        complete_group_member(*other);
      }
    }
    count_broken(broken);
  }
}

void Sequencer::count_broken(BrokenGroups::iterator broken) {
  if (--broken->second.left == 0) {
    broken_groups_.erase(broken);
  }
}

// Whether all have asked for it that will.
bool Sequencer::is_rest_of_group(const Pending& pending) const {
  const auto broken = broken_groups_.find(group_key(pending.common));
  return broken != broken_groups_.end() && is_named_after_group(pending.common) &&
         pending.reported_count == broken->second.ranks;
}

}  // namespace lightcc
