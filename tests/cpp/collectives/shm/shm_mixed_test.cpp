// Long random sequences of all operations without barriers, over threads and over forked processes,
// with ranks that poll and with ranks that sleep on their doorbells.

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/unique_fd.hpp"
#include "lightcc/collectives/shm/shm_group.hpp"
#include "lightcc/transport/shm/segment.hpp"

#include "collectives/shm/shm_testing.hpp"
#include "doubles/threads.hpp"

namespace lightcc::shm_mixed_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

using Drive = std::function<Status(std::unique_ptr<Work>)>;

std::uint64_t mix(std::uint64_t operation, std::size_t from, std::size_t to = 0) {
  return operation * 1000003 + from * 101 + to;
}

/// The same sequence on every rank: what is random depends on the seed and the operation's number
/// only.
class Script {
 public:
  Script(Group& group, std::uint64_t seed, Drive drive)
      : group_(group),
        n_(static_cast<std::size_t>(group.size())),
        rank_(static_cast<std::size_t>(group.rank())),
        random_(seed),
        drive_(std::move(drive)) {}

  void play(std::uint64_t operations) {
    for (number_ = 0; number_ < operations && !::testing::Test::HasFailure(); ++number_) {
      switch (below(8)) {
        case 0:
          reduce_bucket();
          break;
        case 1:
          scatter();
          break;
        case 2:
          gather();
          break;
        case 3:
          broadcast();
          break;
        case 4:
          exchange();
          break;
        case 5:
        case 6:
          pass_on();
          break;
        default:
          done(group_.barrier());
          break;
      }
    }
  }

 private:
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }
  std::size_t length() {
    const std::size_t maximum[] = {2, 17, 130, 900};
    return below(maximum[below(4)]);
  }
  std::vector<std::size_t> lengths() {
    std::vector<std::size_t> result(n_);
    std::generate(result.begin(), result.end(), [&] { return length(); });
    return result;
  }
  void done(std::unique_ptr<Work> work) {
    const Status status = drive_(std::move(work));
    ASSERT_TRUE(status.ok()) << status.message();
  }
  static const std::byte* data(const Buffer& buffer) { return buffer.data(); }

  void reduce_bucket() {
    const std::vector<std::size_t> counts = {length(), length(), length()};
    const std::size_t total = counts[0] + counts[1] + counts[2];
    const std::vector<Buffer> inputs = contributions(total);
    const Buffer expected = combine(inputs, total);
    Buffer mine = inputs[rank_];
    done(group_.allreduce({{mine.data(), mine.data(), counts[0]},
                           {mine.data() + counts[0] * 4, mine.data() + counts[0] * 4, counts[1]},
                           {mine.data() + (counts[0] + counts[1]) * 4,
                            mine.data() + (counts[0] + counts[1]) * 4,
                            counts[2]}},
                          {}));
    ASSERT_EQ(mine, expected) << "operation " << number_;
  }
  std::vector<Buffer> contributions(std::size_t count) const {
    std::vector<Buffer> inputs;
    for (std::size_t k = 0; k < n_; ++k) {
      inputs.push_back(numbers(DataType::kFloat32, count, mix(number_, k)));
    }
    return inputs;
  }
  static Buffer combine(const std::vector<Buffer>& inputs, std::size_t count) {
    std::vector<const Buffer*> pointers;
    for (const Buffer& input : inputs) {
      pointers.push_back(&input);
    }
    return reference(pointers, count, {});
  }

  void scatter() {
    const std::vector<std::size_t> counts = lengths();
    std::size_t total = 0;
    std::size_t start = 0;
    for (std::size_t k = 0; k < n_; ++k) {
      start = k == rank_ ? total : start;
      total += counts[k];
    }
    const std::vector<Buffer> inputs = contributions(total);
    const Buffer expected = combine(inputs, total);
    Buffer out(counts[rank_] * 4);
    done(group_.reduce_scatter(inputs[rank_].data(), out.data(), counts, {}));
    ASSERT_TRUE(std::equal(
        out.begin(), out.end(), expected.begin() + static_cast<std::ptrdiff_t>(start * 4)))
        << "operation " << number_;
  }

  void gather() {
    const std::vector<std::size_t> bytes = lengths();
    Buffer expected;
    for (std::size_t k = 0; k < n_; ++k) {
      const Buffer block = pattern(bytes[k], mix(number_, k));
      expected.insert(expected.end(), block.begin(), block.end());
    }
    const Buffer mine = pattern(bytes[rank_], mix(number_, rank_));
    Buffer out(expected.size());
    done(group_.allgather(mine.data(), out.data(), bytes));
    ASSERT_EQ(out, expected) << "operation " << number_;
  }

  void broadcast() {
    const std::size_t root = below(n_);
    const std::size_t bytes = length();
    const Buffer expected = pattern(bytes, mix(number_, root));
    Buffer data = rank_ == root ? expected : Buffer(bytes);
    done(group_.broadcast(data.data(), bytes, static_cast<int>(root)));
    ASSERT_EQ(data, expected) << "operation " << number_;
  }

  void exchange() {
    std::vector<std::size_t> send_bytes;
    std::vector<std::size_t> recv_bytes;
    Buffer in;
    Buffer expected;
    for (std::size_t from = 0; from < n_; ++from) {
      for (std::size_t to = 0; to < n_; ++to) {
        const std::size_t bytes = length();
        const Buffer block = pattern(bytes, mix(number_, from, to));
        if (from == rank_) {
          send_bytes.push_back(bytes);
          in.insert(in.end(), block.begin(), block.end());
        }
        if (to == rank_) {
          recv_bytes.push_back(bytes);
          expected.insert(expected.end(), block.begin(), block.end());
        }
      }
    }
    Buffer out(expected.size());
    done(group_.alltoall(in.data(), send_bytes, out.data(), recv_bytes));
    ASSERT_EQ(out, expected) << "operation " << number_;
  }

  void pass_on() {
    const std::size_t from = below(n_);
    const std::size_t to = (from + 1 + below(n_)) % n_;
    const std::size_t bytes = length();
    if (from == to) {
      return;
    }
    const Buffer expected = pattern(bytes, mix(number_, from));
    if (rank_ == from) {
      done(group_.send(expected.data(), bytes, static_cast<int>(to)));
    } else if (rank_ == to) {
      Buffer data(bytes);
      done(group_.recv(data.data(), bytes, static_cast<int>(from)));
      ASSERT_EQ(data, expected) << "operation " << number_;
    }
  }

  Group& group_;
  std::size_t n_;
  std::size_t rank_;
  std::mt19937_64 random_;
  Drive drive_;
  std::uint64_t number_ = 0;
};

ShmGroupOptions mixed_options(int size, int depth) {
  ShmGroupOptions options = tiny_options(size, depth);
  options.direct_bytes = 1500;
  return options;
}

TEST(ShmMixed, ten_thousand_random_operations_are_right_on_threads) {
  for (const int size : {2, 3, 5, 8}) {
    const auto seed = static_cast<std::uint64_t>(20 + size);
    SCOPED_TRACE(::testing::Message() << size << " ranks, seed " << seed);
    on_threads(size, mixed_options(size, 2 + size % 3), [&](Group& group) {
      Script(group, seed, testing::run).play(2500);
    });
  }
}

/// A group in a sealed segment, with an eventfd for each rank, as the engine has it.
class SleepingGroup {
 public:
  SleepingGroup(int size, const ShmGroupOptions& options) : size_(size), options_(options) {
    const std::size_t bytes = shm_group_bytes(size, options);
    auto segment = ShmSegment::create(bytes + static_cast<std::size_t>(size) * sizeof(SleepWord));
    EXPECT_TRUE(segment.ok()) << segment.status().message();
    segment_ = std::move(segment).value();
    words_ = reinterpret_cast<SleepWord*>(segment_.memory().data() + bytes);
    for (int rank = 0; rank < size; ++rank) {
      events_.emplace_back(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    }
  }

  std::unique_ptr<Group> member(int rank) {
    std::vector<Doorbell> bells;
    for (int other = 0; other < size_; ++other) {
      bells.emplace_back(words_ + other, events_[static_cast<std::size_t>(other)].get());
    }
    return make_shm_group(segment_.memory(), rank, std::move(bells), options_);
  }

  /// Sleeps whenever nothing moves, as the progress loop does. A lost wake-up is an error.
  Status drive(int rank, std::unique_ptr<Work> work) {
    SleepWord& word = words_[rank];
    const int event = events_[static_cast<std::size_t>(rank)].get();
    bool looked_again = false;
    while (true) {
      auto progress = work->advance();
      if (!progress.ok()) {
        return progress.status();
      }
      if (*progress == Progress::kDone) {
        word.sleeping.store(0, std::memory_order_seq_cst);
        return Status::ok_status();
      }
      if (*progress == Progress::kMoved) {
        continue;
      }
      if (!looked_again) {
        word.sleeping.store(1, std::memory_order_seq_cst);
        looked_again = true;
        continue;
      }
      pollfd wait{.fd = event, .events = POLLIN, .revents = 0};
      if (::poll(&wait, 1, 20'000) != 1) {
        return make_error(ErrorCode::kTimeout, "rank %d was not woken", rank);
      }
      eventfd_t ignored = 0;
      (void)::eventfd_read(event, &ignored);
      looked_again = false;
    }
  }

 private:
  int size_;
  ShmGroupOptions options_;
  ShmSegment segment_;
  SleepWord* words_ = nullptr;
  std::vector<UniqueFd> events_;
};

TEST(ShmMixed, ranks_that_sleep_are_woken_for_all_they_wait_for) {
  for (const int size : {2, 3, 5}) {
    SCOPED_TRACE(::testing::Message() << size << " ranks");
    SleepingGroup shared(size, mixed_options(size, 2));
    run_on_threads(size, [&](int rank) {
      auto group = shared.member(rank);
      Script(*group, 7, [&](std::unique_ptr<Work> work) {
        return shared.drive(rank, std::move(work));
      }).play(1500);
    });
  }
}

/// Runs `body` once for each rank, each in its own process, and expects all to succeed.
void on_processes(int size, const std::function<void(int)>& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      body(rank);
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(ShmMixed, random_operations_are_right_between_processes) {
  for (const int size : {2, 3}) {
    SleepingGroup shared(size, mixed_options(size, 3));
    on_processes(size, [&](int rank) {
      auto group = shared.member(rank);
      Script(*group, 11, testing::run).play(1500);
    });
  }
}

TEST(ShmMixed, processes_that_sleep_are_woken) {
  for (const int size : {2, 3}) {
    SleepingGroup shared(size, mixed_options(size, 2));
    on_processes(size, [&](int rank) {
      auto group = shared.member(rank);
      Script(*group, 13, [&](std::unique_ptr<Work> work) {
        return shared.drive(rank, std::move(work));
      }).play(800);
    });
  }
}

TEST(ShmMixed, default_options_are_right_between_processes) {
  for (const int size : {2, 3}) {
    ShmGroupOptions options = default_shm_options(size);
    options.simd = detect_simd_level();
    SleepingGroup shared(size, options);
    on_processes(size, [&](int rank) {
      auto group = shared.member(rank);
      for (const std::size_t count : {2048U, 2049U, 100'003U, 1'000'000U}) {
        std::vector<Buffer> inputs;
        std::vector<const Buffer*> pointers;
        for (int k = 0; k < size; ++k) {
          inputs.push_back(numbers(DataType::kFloat32, count, static_cast<std::uint64_t>(k)));
        }
        for (const Buffer& input : inputs) {
          pointers.push_back(&input);
        }
        Buffer data = inputs[static_cast<std::size_t>(rank)];
        testing::expect_done(group->allreduce({{data.data(), data.data(), count}}, {}));
        ASSERT_TRUE(data == reference(pointers, count, {})) << count;
      }
    });
  }
}

}  // namespace
}  // namespace lightcc::shm_mixed_test
