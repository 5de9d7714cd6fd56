// Streams of messages: contents, sizes, order, threads, registered memory.
#include <algorithm>
#include <array>
#include <chrono>
#include <random>

#include "cases.hpp"
#include "report.hpp"
#include "stream.hpp"

namespace net_conform {
namespace {

void sizes(Side& side) {
  const Comm comm = open_comm(side);
  for (const std::size_t bytes : side.options().sizes_bytes) {
    // Exactly as large, and larger, as NCCL posts them.
    const std::size_t count = bytes > (std::size_t{1} << 20) ? 3 : 10;
    std::vector<Message> messages = equal_messages(count, bytes, bytes + bytes / 3 + 100);
    messages.front().posted_bytes = bytes;
    run_stream(
        side, comm.get(), messages, {.seed = bytes, .window = std::min<std::size_t>(8, count)});
  }
  side.meet();
}

void zero(Side& side) {
  const Comm comm = open_comm(side);
  std::vector<Message> messages;
  for (std::size_t i = 0; i < 40; ++i) {
    const std::size_t bytes = i % 4 == 1 ? 5000 : 0;
    messages.push_back({bytes, i % 3 == 2 ? bytes : 8192});
  }
  run_stream(side, comm.get(), messages, {.seed = 5, .content = "data.zero"});
  pass("data.zero");
  side.meet();
}

void unaligned(Side& side) {
  const Comm comm = open_comm(side);
  for (const std::size_t misalignment : {1U, 3U, 7U, 13U}) {
    run_stream(side,
               comm.get(),
               equal_messages(8, 70001, 70001 + misalignment),
               {.seed = misalignment, .misalignment = misalignment, .content = "data.unaligned"});
  }
  pass("data.unaligned");
  side.meet();
}

void order(Side& side) {
  const Comm comm = open_comm(side);
  constexpr std::size_t kCount = 500;
  std::vector<Message> messages;
  messages.reserve(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    messages.push_back({8 + i * 37 % 2000, 4096});
  }
  run_stream(side, comm.get(), messages, {.seed = 6, .content = "data.order"});
  pass("data.order");
  side.meet();
}

void read_only(Side& side) {
  const Comm comm = open_comm(side);
  constexpr std::size_t kBytes = 200000;
  const GuardedBuffer buffer(kBytes);
  if (side.is_a()) {
    fill_pattern(buffer.span(), 14, 0);
    buffer.make_read_only();
  }
  const Registered registered(&side, comm.get(), buffer.span());
  finish(side, post(side, comm.get(), buffer.span(), registered.mr()), "data.read-only");
  const std::string difference = find_difference(buffer.span(), 14, 0);
  check("data.read-only", difference.empty(), "%s", difference.c_str());
  side.meet();
}

/// Four communicators of one process, each with its progress thread.
void in_parallel(Side& side) {
  constexpr std::size_t kComms = 4;
  std::vector<Comm> comms;
  std::vector<std::unique_ptr<Worker>> workers;
  for (std::size_t i = 0; i < kComms; ++i) {
    comms.push_back(open_comm(side));
    workers.push_back(std::make_unique<Worker>("NCCL Progress"));
  }
  const auto messages = equal_messages(50, 60000, 65536);
  for (std::size_t i = 0; i < kComms; ++i) {
    workers[i]->start([&, i] {
      move_stream(side, comms[i].get(), messages, {.seed = 50 + i, .content = "data.in-parallel"});
    });
  }
  for (const auto& worker : workers) {
    worker->wait();
  }
  pass("data.in-parallel");
  side.meet();
}

void soak(Side& side) {
  const Comm comm = open_comm(side);
  side.set_deadline(side.options().limit_s + side.options().soak_s);
  std::mt19937_64 random(2026);  // NOLINT(bugprone-random-generator-seed): the same on both sides
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t round = 0;
  bool goes_on = true;
  while (goes_on) {
    std::vector<Message> messages;
    for (int i = 0; i < 32; ++i) {
      const std::size_t bytes = random() % (std::size_t{1} << (random() % 21));
      messages.push_back({bytes, bytes + random() % 5000});
    }
    run_stream(side, comm.get(), messages, {.seed = 1000 + round++, .content = "data.soak"});
    if (side.is_a()) {
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
      goes_on = passed.count() < side.options().soak_s;
      const auto word = goes_on ? std::byte{1} : std::byte{0};
      side.say({&word, 1});
    } else {
      goes_on = side.hear().front() != std::byte{0};
    }
  }
  pass("data.soak");
  side.meet();
}

void register_again(Side& side) {
  const Comm comm = open_comm(side);
  const GuardedBuffer buffer(8192);
  Registered first(&side, comm.get(), buffer.span());
  Registered second(&side, comm.get(), buffer.span());
  second.release();
  first.release();
  run_stream(side, comm.get(), equal_messages(2, 100, 100), {.seed = 16});
  side.meet();
}

/// The service thread registers and deregisters on a comm whose messages the progress thread moves.
void register_in_flight(Side& side) {
  const Comm comm = open_comm(side);
  const auto messages = equal_messages(100, 100000, 100000);
  side.progress().start([&] { move_stream(side, comm.get(), messages, {.seed = 17}); });
  const GuardedBuffer buffer(65536);
  for (int i = 0; i < 500; ++i) {
    Registered registered(&side, comm.get(), buffer.span());
    registered.release();
  }
  side.progress().wait();
  pass("memory.register-in-flight");
  side.meet();
}

}  // namespace

std::span<const Case> data_cases() {
  static const std::array kCases = std::to_array<Case>({
      {"data.sizes",
       sizes,
       {"data.content",
        "data.recv-size",
        "data.send-size",
        "data.beyond-message",
        "data.completes"}},
      {"data.zero", zero, {"data.zero"}},
      {"data.unaligned", unaligned, {"data.unaligned"}},
      {"data.order", order, {"data.order"}},
      {"data.read-only", read_only, {"data.read-only"}},
      {"data.in-parallel", in_parallel, {"data.in-parallel"}},
      {"data.soak", soak, {"data.soak"}},
      {"memory.register-again", register_again, {"memory.register-again"}},
      {"memory.register-in-flight", register_in_flight, {"memory.register-in-flight"}},
  });
  return kCases;
}

}  // namespace net_conform
