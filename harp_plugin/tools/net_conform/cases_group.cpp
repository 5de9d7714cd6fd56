// Receives into several buffers at once: one request, several messages, told apart by their tags.
//
// A plugin may take a message before its buffer is posted, or say "not now" to isend until then; so
// the sender keeps all that are left in hand and tries each in turn.
#include <algorithm>
#include <array>
#include <numeric>
#include <random>

#include "cases.hpp"
#include "report.hpp"
#include "stream.hpp"

namespace net_conform {
namespace {

/// One message of a group; `number` is what its bytes are made from.
struct Part {
  int tag;
  std::size_t bytes;
  std::size_t posted_bytes;
  std::uint64_t number;
};
using Group = std::vector<Part>;

constexpr std::uint64_t kSeed = 77;

/// Sends all parts, trying them in the order given; done when all are sent.
void send_parts(Side& side, void* comm, const std::vector<Part>& parts, const char* rule) {
  struct Sending {
    GuardedBuffer buffer;
    void* request = nullptr;
    bool is_done = false;
  };
  std::vector<Sending> sendings;
  for (const Part& part : parts) {
    sendings.push_back({GuardedBuffer(std::max<std::size_t>(part.bytes, 1))});
    fill_pattern(sendings.back().buffer.span().first(part.bytes), kSeed, part.number);
  }
  const Registered registered(&side, comm, sendings.front().buffer.span());
  side.poll(rule, "sending a group", [&] {
    bool all_done = true;
    std::vector<int> held_back;  // One tag's messages stay in order.
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Sending& sending = sendings[i];
      if (sending.request == nullptr && !sending.is_done &&
          std::ranges::find(held_back, parts[i].tag) == held_back.end()) {
        const Result result = side.driver().isend(comm,
                                                  sending.buffer.data(),
                                                  parts[i].bytes,
                                                  parts[i].tag,
                                                  registered.mr(),
                                                  &sending.request);
        require(rule, result == Result::kSuccess, "isend: %s", name_of(result));
        if (sending.request == nullptr) {
          held_back.push_back(parts[i].tag);
        }
      }
      if (sending.request != nullptr) {
        bool done = false;
        const Result result = side.driver().test(sending.request, &done, nullptr);
        require(rule, result == Result::kSuccess, "test: %s", name_of(result));
        if (done) {
          sending.request = nullptr;
          sending.is_done = true;
        }
      }
      all_done = all_done && sending.is_done;
    }
    return all_done;
  });
}

/// Posts each group, two of them ahead, and checks every buffer and size.
void recv_groups(Side& side, void* comm, const std::vector<Group>& groups, const char* rule) {
  struct Receiving {
    std::vector<GuardedBuffer> buffers;
    void* request = nullptr;
  };
  std::vector<Receiving> receivings(groups.size());
  const GuardedBuffer any(64);
  const Registered registered(&side, comm, any.span());
  const auto post = [&](std::size_t index) {
    Receiving& receiving = receivings[index];
    std::vector<void*> data;
    std::vector<std::size_t> bytes;
    std::vector<int> tags;
    std::vector<void*> mrs;
    for (const Part& part : groups[index]) {
      receiving.buffers.emplace_back(std::max<std::size_t>(part.posted_bytes, 1));
      data.push_back(receiving.buffers.back().data());
      bytes.push_back(part.posted_bytes);
      tags.push_back(part.tag);
      mrs.push_back(registered.mr());
    }
    side.poll(rule, "irecv", [&] {
      const Result result = side.driver().irecv(comm,
                                                static_cast<int>(data.size()),
                                                data.data(),
                                                bytes.data(),
                                                tags.data(),
                                                mrs.data(),
                                                &receiving.request);
      require(rule, result == Result::kSuccess, "irecv: %s", name_of(result));
      return receiving.request != nullptr;
    });
  };
  std::size_t posted = 0;
  for (std::size_t index = 0; index < groups.size(); ++index) {
    while (posted < groups.size() && posted < index + 2) {
      post(posted++);
    }
    std::array<int, 64> reported{};
    reported.fill(-1);
    side.poll(rule, "a grouped receive", [&] {
      bool done = false;
      const Result result = side.driver().test(receivings[index].request, &done, reported.data());
      require(rule, result == Result::kSuccess, "test: %s", name_of(result));
      return done;
    });
    for (std::size_t i = 0; i < groups[index].size(); ++i) {
      const Part& part = groups[index][i];
      check(rule,
            reported[i] == static_cast<int>(part.bytes),
            "group %zu, buffer %zu: size %d instead of %zu",
            index,
            i,
            reported[i],
            part.bytes);
      const std::string difference = find_difference(
          receivings[index].buffers[i].span().first(part.bytes), kSeed, part.number);
      check(rule, difference.empty(), "group %zu, buffer %zu: %s", index, i, difference.c_str());
    }
    check("data.size-slots",
          reported[groups[index].size()] == -1,
          "a size beyond the %zu of the group",
          groups[index].size());
  }
}

/// B posts the groups; A sends what is in them in the order that `order` gives within each.
template <typename Order>
void run_groups(Side& side,
                const std::vector<Group>& groups,
                const char* rule,
                const Order& order) {
  const Comm comm = open_comm(side);
  side.progress().run([&] {
    if (side.is_a()) {
      for (Group group : groups) {
        order(&group);
        send_parts(side, comm.get(), group, rule);
      }
    } else {
      recv_groups(side, comm.get(), groups, rule);
    }
  });
  pass(rule);
  side.meet();
}

std::size_t maximum(Side& side) {
  return static_cast<std::size_t>(side.properties().max_recvs);
}

void same_tag(Side& side) {
  std::vector<Group> groups;
  std::uint64_t number = 0;
  for (std::size_t count = 2; count <= maximum(side); ++count) {
    for (int again = 0; again < 3; ++again) {
      Group& group = groups.emplace_back();
      for (std::size_t i = 0; i < count; ++i) {
        group.push_back({5, 20000 + i, 32768, number++});
      }
    }
  }
  run_groups(side, groups, "group.same-tag", [](Group*) {});
}

void tags(Side& side) {
  std::vector<Group> groups;
  std::uint64_t number = 0;
  for (std::size_t round = 0; round < 20; ++round) {
    Group& group = groups.emplace_back();
    for (std::size_t i = 0; i < maximum(side); ++i) {
      group.push_back({static_cast<int>(i), 5000, 8192, number++});
    }
  }
  std::mt19937 random(3);
  run_groups(
      side, groups, "group.tags", [&](Group* group) { std::ranges::shuffle(*group, random); });
}

void group_sizes(Side& side) {
  std::vector<Group> groups;
  std::uint64_t number = 0;
  for (std::size_t round = 0; round < 20; ++round) {
    Group& group = groups.emplace_back();
    for (std::size_t i = 0; i < maximum(side); ++i) {
      const std::size_t bytes = (round + i) % 3 == 0 ? 0 : (round * 7919 + i * 104729) % 300000;
      group.push_back({static_cast<int>(i), bytes, 300000, number++});
    }
  }
  run_groups(side, groups, "group.sizes", [](Group* group) { std::ranges::reverse(*group); });
}

/// The messages of two groups, those of the second first as far as the tags allow.
void next(Side& side) {
  const Comm comm = open_comm(side);
  std::vector<Group> groups;
  std::vector<Part> sent;
  std::uint64_t number = 0;
  for (std::size_t round = 0; round < 10; ++round) {
    const Part one{0, 7000, 8192, number++};
    const Part two{1, 100, 8192, number++};
    const Part three{2, 9000, 16384, number++};
    const Part four{3, 0, 8192, number++};
    groups.push_back({one, two});
    groups.push_back({three, four});
    sent.insert(sent.end(), {four, two, three, one});
  }
  side.progress().run([&] {
    if (side.is_a()) {
      for (std::size_t i = 0; i < sent.size(); i += 4) {
        send_parts(side,
                   comm.get(),
                   {sent.begin() + static_cast<std::ptrdiff_t>(i),
                    sent.begin() + static_cast<std::ptrdiff_t>(i) + 4},
                   "group.next");
      }
    } else {
      recv_groups(side, comm.get(), groups, "group.next");
    }
  });
  pass("group.next");
  side.meet();
}

}  // namespace

std::span<const Case> group_cases() {
  static const std::array kCases = std::to_array<Case>({
      {"group.same-tag", same_tag, {"group.same-tag"}, Needs::kGroups},
      {"group.tags", tags, {"group.tags"}, Needs::kGroups},
      {"group.sizes", group_sizes, {"group.sizes"}, Needs::kGroups},
      {"group.next", next, {"group.next"}, Needs::kGroups},
  });
  return kCases;
}

}  // namespace net_conform
