// One end of a session, and a listener's end of many, as an application uses them.
//
// Thread: one at a time for each object. Blocks: no, except for a turn of the engine when one is
// made or destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "protocol/types.hpp"
#include "runtime/backlog.hpp"
#include "runtime/channel.hpp"
#include "runtime/engine.hpp"
#include "runtime/stack.hpp"

namespace harp {

class Connection {
 public:
  Connection(Engine& engine, std::shared_ptr<Channel> channel)
      : engine_(engine), channel_(std::move(channel)) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  /// Closes: in good order where no send is outstanding, else at once. Buffers of requests that
  /// were under way are free when it returns. The peer is not waited for.
  ~Connection() {
    engine_.with_stack([&](Stack& stack, Time now) { stack.close(*channel_, now); });
  }

  /// Moves the engine on, where callers do that, and says how the session stands.
  Channel::Life poll() {
    engine_.drive();
    return channel_->life();
  }
  Channel::Life life() const { return channel_->life(); }
  /// Why it ended.
  SessionError error() const { return channel_->end_error(); }

  /// For a log, before it is closed: see describe_close().
  std::vector<std::string> describe_close() {
    return engine_.with_stack(
        [&](const Stack& stack, Time) { return harp::describe_close(stack, *channel_); });
  }

  /// What is sent from `memory` may be read there by the NIC, until deregister_memory(); whether it
  /// is depends on the datapath. Thread: any. Blocks for a turn, where the datapath registers.
  void register_memory(std::span<const std::byte> memory) {
    if (engine_.registers_memory()) {
      engine_.with_stack([&](Stack& stack, Time) { (void)stack.register_memory(memory); });
    }
  }
  void deregister_memory(std::span<const std::byte> memory) {
    if (engine_.registers_memory()) {
      engine_.with_stack([&](Stack& stack, Time) { stack.deregister_memory(memory); });
    }
  }

  /// See Channel. It leaves at once where nothing else is under way. Otherwise it leaves when the
  /// caller asks for that with test(), together with what was posted until then: system calls and
  /// turns cost by the batch.
  std::optional<RequestId> send(std::span<const std::byte> data, std::uint16_t tag) {
    const bool is_alone = under_way_ == 0;
    const auto request = posted(channel_->send(data, tag));
    if (request && is_alone) {
      engine_.drive();
    }
    return request;
  }
  /// The engine learns of it with the next call: nothing has to leave at once.
  std::optional<RequestId> receive(std::span<std::byte> buffer) {
    return posted(channel_->receive(buffer));
  }
  std::optional<RequestId> receive_taken(const Taker& taker) {
    return posted(channel_->receive_taken(taker));
  }
  std::optional<Channel::Completion> test(RequestId request) {
    auto completion = channel_->test(request);
    if (!completion) {
      engine_.drive();
      completion = channel_->test(request);
    }
    under_way_ -= completion ? 1 : 0;
    return completion;
  }

 private:
  std::optional<RequestId> posted(std::optional<RequestId> request) {
    if (request) {
      ++under_way_;
    } else {
      engine_.drive();
    }
    return request;
  }

  Engine& engine_;
  std::shared_ptr<Channel> channel_;
  std::size_t under_way_ = 0;  ///< Requests that test() has not said to be complete.
};

class Acceptor {
 public:
  Acceptor(Engine& engine, std::uint64_t listen_id, std::shared_ptr<Backlog> backlog)
      : engine_(engine), listen_id_(listen_id), backlog_(std::move(backlog)) {}
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  /// Ends it, and the sessions that were not accepted.
  ~Acceptor() {
    engine_.with_stack([&](Stack& stack, Time now) { stack.stop_listening(listen_id_, now); });
  }

  /// The oldest connection that was not accepted; null: none.
  std::unique_ptr<Connection> accept() {
    auto channel = backlog_->take();
    if (channel == nullptr) {
      engine_.drive();
      channel = backlog_->take();
    }
    return channel == nullptr ? nullptr : std::make_unique<Connection>(engine_, channel);
  }

 private:
  Engine& engine_;
  std::uint64_t listen_id_;
  std::shared_ptr<Backlog> backlog_;
};

}  // namespace harp
