#include "lightcc/engine/names.hpp"

#include "lightcc/control/control_plane.hpp"

namespace lightcc {
namespace {

const char* kind_name(OpType op) {
  switch (op) {
    case OpType::kAllreduce:
      return "allreduce";
    case OpType::kAllgather:
      return "allgather";
    case OpType::kBroadcast:
      return "broadcast";
    case OpType::kAlltoall:
      return "alltoall";
    case OpType::kReducescatter:
      return "reducescatter";
    case OpType::kSend:
    case OpType::kRecv:
      return "sendrecv";
    case OpType::kBarrier:
      return "barrier";
    case OpType::kJoin:
      return kJoinName;
    case OpType::kAddProcessSet:
      return "add_process_set";
    case OpType::kRemoveProcessSet:
      return "remove_process_set";
  }
  return "operation";
}

std::string list_text(const std::vector<std::int32_t>& ranks) {
  std::string text;
  for (const std::int32_t rank : ranks) {
    text += (text.empty() ? "[" : ", ") + std::to_string(rank);
  }
  return text + "]";
}

}  // namespace

Names::Scope Names::scope_of(const Operation& operation) const {
  const Signature& s = operation.request.signature;
  if (!is_transfer(s.op)) {
    return {.process_set = s.process_set, .sequence = operation.sequence};
  }
  const bool sends = s.op == OpType::kSend;
  const std::int32_t source = s.is_open_receive() ? kAnySource : s.root_or_peer;
  return {.process_set = s.process_set,
          .source = sends ? rank_ : source,
          .destination = sends ? s.root_or_peer : rank_,
          .sequence = operation.sequence};
}

Name Names::make(const Operation& operation, bool grouped) {
  const Signature& s = operation.request.signature;
  std::string text = grouped ? "grouped_" : "";
  text += kind_name(s.op);
  switch (s.op) {
    case OpType::kBarrier:
    case OpType::kJoin:
      return {.text = std::move(text)};
    case OpType::kAddProcessSet:
      return {.text = text + '.' + list_text(operation.request.ranks)};
    case OpType::kRemoveProcessSet:
      return {.text = text + '.' + std::to_string(s.root_or_peer)};
    default:
      break;
  }
  if (operation.name.has_value() && operation.sequence.empty() && !is_transfer(s.op)) {
    text += '.';
    text += *operation.name;
    return {.text = std::move(text)};
  }
  Scope scope = scope_of(operation);
  const bool opens = !grouped && has_unknown_source(operation);
  if (opens) {
    scope.source = kAnySource;
    ++open_[scope];
  }
  const bool has_no_kind =
      !is_transfer(s.op) && (!operation.name.has_value() || !scope.sequence.empty());
  if (has_no_kind) {
    text = scope.sequence;
  } else if (is_transfer(s.op)) {
    text += '.' + (opens ? "" : std::to_string(scope.source)) + "to" +
            std::to_string(scope.destination);
    if (!operation.name.has_value() && !scope.sequence.empty()) {
      text += '.' + scope.sequence;
    }
  }
  text += text.empty() ? "" : ".";
  if (operation.name.has_value()) {
    return {.text = text + *operation.name, .has_no_kind = has_no_kind};
  }
  Name name{.text = text + "noname." + std::to_string(counts_[scope]++),
            .is_automatic = true,
            .has_no_kind = has_no_kind};
  if (!grouped && (s.op == OpType::kSend || opens)) {
    name.mailbox = std::to_string(scope.destination) + '.' + scope.sequence;
  }
  return name;
}

// Whether only rank 0 can tell which message `operation` takes.
bool Names::has_unknown_source(const Operation& operation) const {
  if (operation.request.signature.op != OpType::kRecv || operation.name.has_value()) {
    return false;
  }
  Scope scope = scope_of(operation);
  scope.source = kAnySource;
  return operation.from_any || open_.contains(scope);
}

void Names::take_back(const Operation& operation) {
  --counts_[scope_of(operation)];
  if (operation.request.signature.is_open_receive()) {
    close(operation);
  }
}

void Names::found_source(const Operation& operation, int source) {
  Scope scope = scope_of(operation);
  scope.source = source;
  ++counts_[scope];
  close(operation);
}

void Names::close(const Operation& operation) {
  const auto open = open_.find(scope_of(operation));
  if (open != open_.end() && --open->second == 0) {
    open_.erase(open);
  }
}

Name member_name(const Name& group, std::size_t index, std::size_t count) {
  if (group.has_no_kind && index == 0) {
    return group;
  }
  return {.text = group.text + '_' + std::to_string(index + 1) + "of" + std::to_string(count),
          .is_automatic = group.is_automatic};
}

}  // namespace lightcc
