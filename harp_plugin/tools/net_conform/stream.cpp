#include "stream.hpp"

#include <algorithm>
#include <deque>

#include "report.hpp"

namespace net_conform {
namespace {

constexpr std::byte kOverwritten{0xEE};
constexpr int kNoSize = -77;

/// Buffers for the messages of a window, each registered.
class Slots {
 public:
  Slots(Side& side, void* comm, std::size_t count, std::size_t bytes) {
    for (std::size_t i = 0; i < count; ++i) {
      buffers_.emplace_back(bytes);
      registrations_.emplace_back(&side, comm, buffers_.back().span());
    }
  }
  std::span<std::byte> last(std::size_t index, std::size_t bytes) const {
    return buffers_[index].last(bytes);
  }
  const GuardedBuffer& buffer(std::size_t index) const { return buffers_[index]; }
  void* mr(std::size_t index) const { return registrations_[index].mr(); }

 private:
  std::vector<GuardedBuffer> buffers_;
  std::vector<Registered> registrations_;
};

struct Pending {
  void* request;
  std::size_t index;
};

/// Tests one of the pending requests; true when it was done, and then `size` is what it told.
bool test_one(Side& side, const Pending& pending, const StreamOptions& options, int* size) {
  bool done = false;
  *size = kNoSize;
  const Result result =
      side.driver().test(pending.request, &done, options.wants_sizes ? size : nullptr);
  require("data.completes",
          result == Result::kSuccess,
          "message %zu: test: %s",
          pending.index,
          name_of(result));
  return done;
}

/// Runs `start` for every message in order and `complete` for every one that is done.
template <typename Start, typename Complete>
void pump(Side& side,
          std::size_t count,
          const StreamOptions& options,
          const Start& start,
          const Complete& complete) {
  std::deque<Pending> pending;
  std::vector<bool> slot_is_busy(options.window, false);
  std::size_t next = 0;
  std::size_t tests = 0;
  Patience patience;
  while (next < count || !pending.empty()) {
    bool moved = false;
    if (next < count && !slot_is_busy[next % options.window]) {
      if (void* request = start(next); request != nullptr) {
        pending.push_back({request, next});
        slot_is_busy[next % options.window] = true;
        ++next;
        moved = true;
      }
    }
    // The oldest, as NCCL does; or the newest, and then the others in turn.
    if (!pending.empty() && (!options.tests_newest_first || !moved)) {
      const std::size_t which =
          options.tests_newest_first ? pending.size() - 1 - (tests++ % pending.size()) : 0;
      const Pending chosen = pending[which];
      int size = 0;
      if (test_one(side, chosen, options, &size)) {
        pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(which));
        slot_is_busy[chosen.index % options.window] = false;
        complete(chosen.index, size);
        moved = true;
      }
    }
    if (!moved) {
      require("data.completes",
              std::chrono::steady_clock::now() < side.deadline(),
              "message %zu of %zu was not done after %.0f s",
              pending.empty() ? next : pending.front().index,
              count,
              side.options().limit_s);
      patience.wait();
    } else {
      patience.renew();
    }
  }
}

std::size_t largest(const std::vector<Message>& messages) {
  std::size_t bytes = 1;
  for (const Message& message : messages) {
    bytes = std::max({bytes, message.bytes, message.posted_bytes});
  }
  return bytes;
}

}  // namespace

std::vector<Message> equal_messages(std::size_t count,
                                    std::size_t bytes,
                                    std::size_t posted_bytes) {
  return {count, Message{.bytes = bytes, .posted_bytes = posted_bytes}};
}

Registered::Registered(Side* side, void* comm, std::span<std::byte> data)
    : side_(side), comm_(comm) {
  const Result result =
      side->driver().reg_mr(comm, data.data(), data.size(), harp::abi::kPtrHost, &mr_);
  require("memory.register-again", result == Result::kSuccess, "regMr: %s", name_of(result));
  is_active_ = true;
}

void Registered::release() {
  if (std::exchange(is_active_, false)) {
    const Result result = side_->driver().dereg_mr(comm_, mr_);
    check("memory.register-again", result == Result::kSuccess, "deregMr: %s", name_of(result));
  }
}

void send_stream(Side& side,
                 void* comm,
                 const std::vector<Message>& messages,
                 const StreamOptions& options) {
  const Slots slots(side, comm, options.window, largest(messages) + options.misalignment);
  const auto data_of = [&](std::size_t index) {
    const std::size_t bytes = messages[index].bytes;
    return slots.last(index % options.window, bytes + options.misalignment).first(bytes);
  };
  pump(
      side,
      messages.size(),
      options,
      [&](std::size_t index) {
        const auto data = data_of(index);
        fill_pattern(data, options.seed, index);
        void* request = nullptr;
        void* const mr = slots.mr(index % options.window);
        const Result result =
            side.driver().isend(comm, data.data(), data.size(), messages[index].tag, mr, &request);
        require("data.completes",
                result == Result::kSuccess,
                "message %zu: isend: %s",
                index,
                name_of(result));
        return request;
      },
      [&](std::size_t index, int size) {
        std::ranges::fill(data_of(index), kOverwritten);
        if (options.wants_sizes) {
          check("data.send-size",
                size == static_cast<int>(messages[index].bytes),
                "message %zu has %zu bytes, test of the send said %d",
                index,
                messages[index].bytes,
                size);
        }
      });
}

void recv_stream(Side& side,
                 void* comm,
                 const std::vector<Message>& messages,
                 const StreamOptions& options) {
  const Slots slots(side, comm, options.window, largest(messages) + options.misalignment);
  const auto data_of = [&](std::size_t index) {
    const std::size_t bytes = messages[index].posted_bytes;
    return slots.last(index % options.window, bytes + options.misalignment).first(bytes);
  };
  pump(
      side,
      messages.size(),
      options,
      [&](std::size_t index) {
        slots.buffer(index % options.window).fill_with_canary();
        const auto buffer = data_of(index);
        void* data = buffer.data();
        std::size_t bytes = buffer.size();
        int tag = messages[index].tag;
        void* mr = slots.mr(index % options.window);
        void* request = nullptr;
        const Result result = side.driver().irecv(comm, 1, &data, &bytes, &tag, &mr, &request);
        require("data.completes",
                result == Result::kSuccess,
                "message %zu: irecv: %s",
                index,
                name_of(result));
        return request;
      },
      [&](std::size_t index, int size) {
        const Message& message = messages[index];
        if (options.wants_sizes) {
          check("data.recv-size",
                size == static_cast<int>(message.bytes),
                "message %zu has %zu bytes, test of the receive said %d",
                index,
                message.bytes,
                size);
        }
        const auto buffer = data_of(index);
        const std::string difference =
            find_difference(buffer.first(message.bytes), options.seed, index);
        check(options.content, difference.empty(), "%s", difference.c_str());
        const auto whole = slots.buffer(index % options.window).span();
        const auto before = static_cast<std::size_t>(buffer.data() - whole.data());
        const std::size_t behind = before + message.bytes;
        const bool is_clean = first_touched(whole.first(before)) == before &&
                              first_touched(whole.subspan(behind)) == whole.size() - behind;
        check("data.beyond-message",
              is_clean,
              "message %zu of %zu bytes, for which %zu were posted",
              index,
              message.bytes,
              message.posted_bytes);
      });
}

void move_stream(Side& side,
                 void* comm,
                 const std::vector<Message>& messages,
                 const StreamOptions& options) {
  if (side.is_a()) {
    send_stream(side, comm, messages, options);
  } else {
    recv_stream(side, comm, messages, options);
  }
}

void run_stream(Side& side,
                void* comm,
                const std::vector<Message>& messages,
                const StreamOptions& options) {
  side.progress().run([&] { move_stream(side, comm, messages, options); });
}

Result try_post(
    Side& side, void* comm, std::span<std::byte> data, void* mr, void** request, int tag) {
  void* pointer = data.data();
  std::size_t bytes = data.size();
  return side.is_a() ? side.driver().isend(comm, pointer, bytes, tag, mr, request)
                     : side.driver().irecv(comm, 1, &pointer, &bytes, &tag, &mr, request);
}

Request post(Side& side, void* comm, std::span<std::byte> data, void* mr) {
  Request made{nullptr, data.size()};
  side.poll("data.completes", "a post", [&] {
    const Result result = try_post(side, comm, data, mr, &made.pointer);
    require("data.completes", result == Result::kSuccess, "post: %s", name_of(result));
    return made.pointer != nullptr;
  });
  return made;
}

int finish(Side& side, const Request& request, const char* rule) {
  int size = kNoSize;
  side.poll(rule, "a request", [&] {
    bool done = false;
    const Result result = side.driver().test(request.pointer, &done, &size);
    require(rule, result == Result::kSuccess, "test: %s", name_of(result));
    return done;
  });
  return size;
}

}  // namespace net_conform
