#include "lightcc/engine/memory_in_use.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "lightcc/control/agreement.hpp"

namespace lightcc {
namespace {

// So many nodes are kept for operations that follow.
constexpr std::size_t kMaxSpare = 64;

Status refuse(const Operation& operation, const Operation& other, const char* what_other_does) {
  return make_error(ErrorCode::kInvalidArgument,
                    "the tensor of '%s' has memory that '%s', which is in flight, %s: wait for "
                    "that one first, or use memory of its own",
                    operation.request.signature.name.c_str(),
                    other.request.signature.name.c_str(),
                    what_other_does);
}

}  // namespace

MemoryInUse::Range MemoryInUse::range_of(const TensorRef& tensor) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): an address to compare.
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (tensor.data == nullptr) {
    return {};
  }
  const auto count = static_cast<std::uintptr_t>(element_count(tensor.shape));
  return {begin, begin + count * element_size(tensor.dtype)};
}

MemoryInUse::Range MemoryInUse::written_by(const Operation& operation) const {
  const Signature& s = operation.request.signature;
  const bool is_root = s.op == OpType::kBroadcast && s.root_or_peer == rank_;
  if (!operation.output.has_value() ||
      (is_root && operation.output->data == operation.input.data)) {
    return {};
  }
  return range_of(*operation.output);
}

// Nothing where the operation writes all of it, too.
MemoryInUse::Range MemoryInUse::read_by(const Operation& operation, const Range& written) {
  const Range range = range_of(operation.input);
  return range == written ? Range() : range;
}

void MemoryInUse::insert(Users& users, const Range& range, const Operation& operation) {
  const User user{.end = range.end, .operation = &operation};
  if (spare_.empty()) {
    users.emplace(range.begin, user);
    return;
  }
  Users::node_type node = std::move(spare_.back());
  spare_.pop_back();
  node.key() = range.begin;
  node.mapped() = user;
  users.insert(std::move(node));
}

void MemoryInUse::erase(Users& users, Users::iterator user) {
  Users::node_type node = users.extract(user);
  if (spare_.size() < kMaxSpare) {
    spare_.push_back(std::move(node));
  }
}

const Operation* MemoryInUse::find(const Users& users, const Range& range) {
  const auto after = users.lower_bound(range.end);
  if (after == users.begin() || std::prev(after)->second.end <= range.begin) {
    return nullptr;
  }
  return std::prev(after)->second.operation;
}

const Operation* MemoryInUse::find_reader(const Range& range) const {
  const auto crosses = [&range](const Reader& reader) {
    return reader.range.begin < range.end && range.begin < reader.range.end;
  };
  const auto found = std::ranges::find_if(crossing_, crosses);
  return found == crossing_.end() ? find(read_, range) : found->operation;
}

Status MemoryInUse::add(const Operation& operation) {
  if (alone_ != nullptr) {
    LIGHTCC_RETURN_IF_ERROR(take_in(*std::exchange(alone_, nullptr)));
  } else if (written_.empty() && read_.empty() && crossing_.empty()) {
    alone_ = &operation;
    return {};
  }
  return take_in(operation);
}

Status MemoryInUse::take_in(const Operation& operation) {
  const Range written = written_by(operation);
  const Range read = read_by(operation, written);
  for (const Range& range : {written, read}) {
    if (const Operation* const other = range.empty() ? nullptr : find(written_, range)) {
      return refuse(operation, *other, "writes");
    }
  }
  if (!written.empty()) {
    if (const Operation* const other = find_reader(written)) {
      return refuse(operation, *other, "reads");
    }
    insert(written_, written, operation);
  }
  if (read.empty()) {
    return {};
  }
  if (find(read_, read) != nullptr) {
    crossing_.push_back({read, &operation});
  } else {
    insert(read_, read, operation);
  }
  return {};
}

void MemoryInUse::remove(const Operation& operation) {
  if (alone_ == &operation) {
    alone_ = nullptr;
    return;
  }
  const Range written = written_by(operation);
  if (!written.empty()) {
    erase(written_, written_.find(written.begin));
  }
  const Range read = read_by(operation, written);
  if (read.empty()) {
    return;
  }
  const auto found = read_.find(read.begin);
  if (found != read_.end() && found->second.operation == &operation) {
    erase(read_, found);
  } else {
    std::erase_if(crossing_, [&](const Reader& it) { return it.operation == &operation; });
  }
}

void MemoryInUse::clear() {
  alone_ = nullptr;
  written_.clear();
  read_.clear();
  crossing_.clear();
}

}  // namespace lightcc
