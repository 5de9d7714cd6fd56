// What the pipeline of a two-level all-reduce gains: its three stages alone, one after another, and
// overlapped, on four forked ranks as two hosts of two.
//
//   grid_bench [Gb/s of a host] [MiB,MiB,...] [iterations] [chunk KiB]
//
// The hosts are joined by TCP on the loopback interface; each rank may send half of its host's rate
// (0: no limit). For every size, float32 sums in place, medians over the iterations of the slowest
// rank's time:
//   scatter, inter, gather   each stage of the whole bucket by itself
//   bound                    the slowest of them, and of the other two only what one chunk takes
//   sum                      one after another
//   one chunk, pipeline      what GridGroup takes without and with overlapping
// Results are checked. Chunk 0 is the default.

#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "lightcc/collectives/grid_group.hpp"
#include "lightcc/collectives/grid_plan.hpp"
#include "lightcc/collectives/net_group.hpp"
#include "lightcc/collectives/shm_group.hpp"
#include "lightcc/net/socket_address.hpp"
#include "lightcc/transport/shm/segment.hpp"
#include "lightcc/transport/tcp/tcp_transport.hpp"

namespace {

using namespace lightcc;  // NOLINT(google-build-using-namespace): a program, not a library

constexpr int kHosts = 2;
constexpr int kMembers = 2;
constexpr int kRanks = kHosts * kMembers;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kMostIterations = 1000;

/// Shared by all ranks.
struct Board {
  struct Address {
    std::atomic<std::size_t> length;  ///< 0: not there yet.
    std::array<std::byte, 256> bytes;
  };
  std::array<Address, kRanks> addresses;
  std::array<std::atomic<std::uint64_t>, kRanks> arrived;
  std::array<std::array<double, kMostIterations>, kRanks> times;
};

struct Job {
  double host_gbits = 1.0;
  std::vector<std::size_t> sizes;
  std::size_t iterations = 10;
  std::size_t chunk_bytes = 0;
};

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "grid_bench: %s\n", what);
  std::_Exit(1);
}

template <typename T>
T take(Result<T> result) {
  if (!result.ok()) {
    fail(result.status().message().c_str());
  }
  return std::move(result).value();
}

class Rank {
 public:
  Rank(int rank, Board& board, std::span<std::byte> memory, const Job& job)
      : rank_(rank), board_(board), memory_(memory), job_(job) {
    options_.simd = detect_simd_level();
    TcpTransportOptions tcp;
    tcp.address = take(SocketAddress::resolve("127.0.0.1:0"));
    tcp.secret = "bench";
    tcp.rate_bytes_per_s = static_cast<std::int64_t>(job.host_gbits * 1e9 / 8 / kMembers);
    transport_ = take(make_tcp_transport(tcp));
    auto& own = board.addresses[static_cast<std::size_t>(rank)];
    std::ranges::copy(transport_->handle(), own.bytes.begin());
    own.length.store(transport_->handle().size());
  }

  void measure_all() {
    ShmGroupOptions shm = default_shm_options(kMembers);
    shm.simd = options_.simd;
    auto stages = make_levels(shm);
    for (const std::size_t bytes : job_.sizes) {
      measure(bytes, stages, shm);
    }
  }

 private:
  /// Of the ranks first, first + stride, ...
  std::unique_ptr<Group> make_net(int first, int last, int stride) {
    std::vector<NetMember> members;
    int own = 0;
    for (int rank = first; rank < last; rank += stride) {
      own = rank == rank_ ? static_cast<int>(members.size()) : own;
      members.push_back({static_cast<std::uint32_t>(rank), handle_of(rank)});
    }
    return make_net_group(*transport_, std::move(members), own, 0, lane_++, options_);
  }

  GridLevels make_levels(const ShmGroupOptions& shm) {
    GridLevels levels;
    levels.intra = make_shm_group(memory_.subspan(taken_),
                                  rank_ % kMembers,
                                  std::vector<Doorbell>(kMembers, Doorbell(&word_, -1)),
                                  shm);
    taken_ += shm_group_bytes(kMembers, shm);
    for (int i = 0; i < 2; ++i) {
      levels.inter.push_back(make_net(rank_ % kMembers, kRanks, kMembers));
    }
    return levels;
  }

  TransportHandle handle_of(int rank) const {
    const auto& address = board_.addresses[static_cast<std::size_t>(rank)];
    while (address.length.load() == 0) {
      sched_yield();
    }
    return {address.bytes.begin(),
            address.bytes.begin() + static_cast<std::ptrdiff_t>(address.length.load())};
  }

  void run(std::unique_ptr<Work> work) {
    for (int idle = 0;;) {
      const Progress progress = take(work->advance());
      if (progress == Progress::kDone) {
        return;
      }
      const bool moved = take(transport_->poll());
      idle = moved || progress == Progress::kMoved ? 0 : idle + 1;
      if (idle > 20) {  // The other ranks and the kernel need the cores.
        transport_->prepare_to_wait();
        pollfd entry{transport_->wait_fd(), POLLIN, 0};
        const timespec moment{0, 50'000};
        (void)ppoll(&entry, 1, &moment, nullptr);
      }
    }
  }

  void barrier() {
    auto& own = board_.arrived[static_cast<std::size_t>(rank_)];
    const std::uint64_t round = own.load() + 1;
    own.store(round);
    for (auto& other : board_.arrived) {
      while (other.load() < round) {
        (void)transport_->poll();
        sched_yield();
      }
    }
  }

  /// Median over the iterations of the slowest rank's time.
  double median(const std::function<std::unique_ptr<Work>()>& start) {
    for (std::size_t i = 0; i < job_.iterations + 1; ++i) {
      barrier();
      const double before = seconds();
      run(start());
      board_.times[static_cast<std::size_t>(rank_)][i] = seconds() - before;
    }
    barrier();
    std::vector<double> slowest(job_.iterations, 0.0);
    for (const auto& times : board_.times) {
      for (std::size_t i = 0; i < slowest.size(); ++i) {
        slowest[i] = std::max(slowest[i], times[i + 1]);  // The first one warms up.
      }
    }
    barrier();
    std::ranges::sort(slowest);
    return slowest[slowest.size() / 2];
  }

  double measure_grid(std::span<float> x, std::size_t chunk_bytes, const ShmGroupOptions& shm) {
    GridGroupOptions options;
    options.chunk_bytes = chunk_bytes;
    auto group =
        make_grid_group(make_net(0, kRanks, 1), make_grid_state(make_levels(shm), options));
    auto* const data = std::as_writable_bytes(x).data();
    const auto start = [&] {
      return group->allreduce({{.in = data, .out = data, .count = x.size()}}, {});
    };
    std::ranges::fill(x, static_cast<float>(rank_ + 1));
    run(start());
    if (!std::ranges::all_of(x, [](float value) { return value == 10.0F; })) {
      fail("a wrong sum");
    }
    std::ranges::fill(x, 0.0F);  // So that it does not grow.
    return median(start);
  }

  void measure(std::size_t bytes, GridLevels& stages, const ShmGroupOptions& shm) {
    std::vector<float> x(bytes / sizeof(float) / kMembers * kMembers);
    auto* const data = std::as_writable_bytes(std::span(x)).data();
    const std::vector<std::size_t> counts(kMembers, x.size() / kMembers);
    const std::vector<TensorSpan> all{{.in = data, .out = data, .count = x.size()}};
    std::byte* const shard = data + static_cast<std::size_t>(rank_ % kMembers) * counts[0] * 4;
    const double scatter =
        median([&] { return stages.intra->reduce_scatter_bucket(all, counts, {}); });
    const double inter = median([&] {
      return stages.inter[0]->allreduce({{.in = shard, .out = shard, .count = counts[0]}}, {});
    });
    const double gather =
        median([&] { return stages.intra->allgather_bucket(all, counts, DataType::kFloat32); });
    const double one_chunk = measure_grid(x, bytes, shm);
    const double pipeline = measure_grid(x, job_.chunk_bytes, shm);
    const std::size_t chunk =
        job_.chunk_bytes != 0 ? job_.chunk_bytes : grid_chunk_bytes(x.size() * sizeof(float));
    const auto chunks =
        static_cast<double>(GridPlan(x.size(), sizeof(float), kMembers, chunk).chunks());
    const double sum = scatter + inter + gather;
    const double slowest = std::max({scatter, inter, gather});
    if (rank_ == 0) {
      std::printf("%9.2f %6.0f %9.2f %9.2f %9.2f %9.2f %9.2f %10.2f %9.2f\n",
                  static_cast<double>(bytes) / kMiB,
                  chunks,
                  scatter * 1e3,
                  inter * 1e3,
                  gather * 1e3,
                  (slowest + (sum - slowest) / chunks) * 1e3,
                  sum * 1e3,
                  one_chunk * 1e3,
                  pipeline * 1e3);
      std::fflush(stdout);
    }
  }

  int rank_;
  Board& board_;
  std::span<std::byte> memory_;
  const Job& job_;
  NetGroupOptions options_;
  SleepWord word_{};
  std::size_t taken_ = 0;
  std::uint32_t lane_ = 0;
  std::unique_ptr<Transport> transport_;
};

std::vector<std::size_t> parse_sizes(const char* text) {
  std::vector<std::size_t> sizes;
  while (*text != '\0') {
    char* end = nullptr;
    sizes.push_back(static_cast<std::size_t>(std::strtod(text, &end) * static_cast<double>(kMiB)));
    text = *end == ',' ? end + 1 : end;
    if (sizes.back() < 64 || (*end != ',' && *end != '\0')) {
      fail("sizes are numbers of MiB with commas between them");
    }
  }
  return sizes;
}

}  // namespace

int main(int argc, char** argv) {
  Job job;
  job.host_gbits = argc > 1 ? std::max(0.0, std::strtod(argv[1], nullptr)) : 1.0;
  job.sizes = parse_sizes(argc > 2 ? argv[2] : "1,16,64");
  job.iterations = argc > 3 ? std::clamp<std::size_t>(
                                  static_cast<std::size_t>(std::strtoul(argv[3], nullptr, 10)),
                                  1,
                                  kMostIterations - 1)
                            : 10;
  job.chunk_bytes =
      argc > 4 ? static_cast<std::size_t>(std::strtoul(argv[4], nullptr, 10)) << 10 : 0;
  auto board = take(ShmSegment::create(sizeof(Board)));
  auto* const shared = new (board.memory().data()) Board();
  // For the stages alone and two grids of every size.
  const std::size_t group_bytes = shm_group_bytes(kMembers, default_shm_options(kMembers));
  std::vector<ShmSegment> hosts;
  for (int host = 0; host < kHosts; ++host) {
    hosts.push_back(take(ShmSegment::create((1 + 2 * job.sizes.size()) * group_bytes)));
  }
  std::printf("2 hosts of 2 ranks, %.3g Gb/s; ms\n", job.host_gbits);
  std::printf("%9s %6s %9s %9s %9s %9s %9s %10s %9s\n",
              "MiB",
              "chunks",
              "scatter",
              "inter",
              "gather",
              "bound",
              "sum",
              "one chunk",
              "pipeline");
  std::fflush(stdout);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (fork() == 0) {
      auto& host = hosts[static_cast<std::size_t>(rank / kMembers)];
      Rank(rank, *shared, host.memory(), job).measure_all();
      std::_Exit(0);
    }
  }
  int result = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    if (wait(&status) < 0 || status != 0) {
      result = 1;
    }
  }
  return result;
}
