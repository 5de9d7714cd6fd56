// A sequencer and what ranks say to it: the vocabulary of the sequencer's tests.
//
// Requests are built by small functions that nest, as in in_set(allreduce("a"), 1). Time does not
// move by itself. A call that takes the commands expects exactly what its name says.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/control/sequencer.hpp"

namespace lightcc::testing {

inline Signature allreduce(const std::string& name, std::vector<std::int64_t> shape = {4}) {
  Signature s;
  s.name = name;
  s.shape = std::move(shape);
  return s;
}

inline Signature operation(OpType op,
                           const std::string& name,
                           std::vector<std::int64_t> shape = {}) {
  Signature s = allreduce(name, std::move(shape));
  s.op = op;
  return s;
}

inline Signature in_set(Signature s, std::uint32_t process_set) {
  s.process_set = process_set;
  return s;
}

inline Signature in_group(Signature s, const std::string& group, std::uint32_t size) {
  s.group = group;
  s.group_size = size;
  return s;
}

inline Signature with_peer(Signature s, int root_or_peer) {
  s.root_or_peer = root_or_peer;
  return s;
}

inline SequencerOptions world_of(int size) {
  SequencerOptions options;
  options.world_size = size;
  return options;
}

/// A sequencer and what ranks say to it.
class Negotiation {
 public:
  explicit Negotiation(const SequencerOptions& options)
      : sequencer(options), size_(options.world_size) {}

  Status ask(int rank,
             const Signature& s,
             std::vector<std::int64_t> splits = {},
             std::vector<std::int32_t> ranks = {}) {
    Request request{s, std::move(splits), std::move(ranks)};
    return report(rank, std::move(request));
  }
  Status object(int rank, const Signature& s, const std::string& objection) {
    return report(rank, Request{s, {}, {}, objection});
  }
  Status ready(int rank, std::uint32_t slot) { return report(rank, ReadySlot{slot}); }
  /// The same with inputs, of ranks that say so.
  Status ready_with(int rank, std::uint32_t slot, std::vector<InlineInput> inputs) {
    return sequencer.on_report(
        {static_cast<std::uint32_t>(rank), ReadySlot{slot}, -1, std::move(inputs)}, now);
  }
  Status ask_with(int rank, const Signature& s, std::vector<InlineInput> inputs) {
    return sequencer.on_report(
        {static_cast<std::uint32_t>(rank), Request{s, {}, {}}, -1, std::move(inputs)}, now);
  }
  Status join(int rank) { return ask(rank, operation(OpType::kJoin, "join")); }
  Status leave(int rank) { return report(rank, Leave{}); }

  void all_ask(const Signature& s, std::vector<std::int32_t> ranks = {}) {
    for (int rank = 0; rank < size_; ++rank) {
      expect_ok(ask(rank, s, {}, ranks));
    }
  }
  void all_ready(std::uint32_t slot) {
    for (int rank = 0; rank < size_; ++rank) {
      expect_ok(ready(rank, slot));
    }
  }
  std::uint32_t add_set(const std::vector<std::int32_t>& ranks) {
    all_ask(operation(OpType::kAddProcessSet, "add"), ranks);
    const auto added = one<AddProcessSet>();
    EXPECT_EQ(added.ranks, ranks);
    EXPECT_EQ(added.name, "add");
    return added.id;
  }
  void remove_set(std::uint32_t id) {
    all_ask(with_peer(operation(OpType::kRemoveProcessSet, "remove"), static_cast<int>(id)));
  }

  static void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }
  static void expect_refused(const Status& status) {
    EXPECT_EQ(status.code(), ErrorCode::kPeerFailed);
    EXPECT_FALSE(status.message().empty());
  }

  void expect_silence() { EXPECT_TRUE(sequencer.take_commands(now).empty()); }
  /// The one command there is.
  template <typename Kind>
  Kind one() {
    const auto commands = sequencer.take_commands(now);
    EXPECT_EQ(commands.size(), 1U);
    if (commands.size() != 1 || !std::holds_alternative<Kind>(commands[0])) {
      ADD_FAILURE() << "a command of another kind";
      return {};
    }
    return std::get<Kind>(commands[0]);
  }
  /// The one bucket there is; its lane is free again at once.
  Execute run() {
    auto execute = one<Execute>();
    sequencer.on_bucket_done(execute.process_set, execute.lane, now);
    return execute;
  }
  AnnouncedTensor run_one() {
    Execute execute = run();
    EXPECT_EQ(execute.tensors.size(), 1U);
    return execute.tensors.empty() ? AnnouncedTensor{} : execute.tensors[0];
  }
  void expect_mismatch(const std::string& name, const std::string& text) {
    const auto failed = one<FailOperation>();
    EXPECT_EQ(failed.name, name);
    EXPECT_EQ(failed.code, ErrorCode::kMismatch);
    EXPECT_NE(failed.message.find(text), std::string::npos) << failed.message;
    EXPECT_FALSE(sequencer.has_pending());
  }

  Sequencer sequencer;
  TimePoint now{};

 private:
  template <typename What>
  Status report(int rank, What what) {
    return sequencer.on_report({static_cast<std::uint32_t>(rank), std::move(what)}, now);
  }

  int size_;
};

}  // namespace lightcc::testing
