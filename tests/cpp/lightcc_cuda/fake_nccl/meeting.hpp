// Where the ranks of one communicator of the fake NCCL meet: a file of shared memory.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace lightcc::cuda::fake {

inline constexpr std::size_t kMostRanks = 8;
inline constexpr std::size_t kMostSplits = 128;
inline constexpr std::size_t kSlotBytes = 32768;

/// What a rank calls; all ranks must call the same.
struct Called {
  std::array<char, 24> name;
  std::uint64_t count;
  int type;
  int op;
  int root;
  double factor;  // A scaled sum's.

  bool operator==(const Called& other) const {
    return name == other.name && count == other.count && type == other.type && op == other.op &&
           root == other.root && factor == other.factor;
  }
};

struct Meeting {
  /// One message at a time from a rank to another one.
  struct Box {
    std::atomic<std::uint32_t> is_full;
    std::uint64_t bytes;  // The whole message has so many.
    std::array<std::byte, kSlotBytes> data;
  };
  struct Split {
    std::atomic<std::uint32_t> is_called;
    int color;
    int key;
  };

  std::atomic<std::uint32_t> joined;
  std::atomic<std::uint32_t> made;  // Ranks for which making it went well, and failed.
  std::atomic<std::uint32_t> failed;
  std::atomic<std::uint32_t> connected;  // Ranks that have called a collective.
  std::array<std::array<std::atomic<bool>, kMostRanks>, kMostRanks> links;  // By caller, peer.
  std::array<std::atomic<std::uint64_t>, kMostRanks> turns;  // Barriers that each came to.
  std::array<Called, kMostRanks> calls;
  std::array<std::array<std::byte, kSlotBytes>, kMostRanks> slots;
  std::array<std::array<Box, kMostRanks>, kMostRanks> boxes;  // By sender, receiver.
  std::array<std::array<Split, kMostRanks>, kMostSplits> splits;

  /// Null where there is no shared memory. The file is all zeros when it is made.
  static Meeting* open(const std::string& name) {
    const int file = ::shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
    if (file < 0 || ::ftruncate(file, sizeof(Meeting)) != 0) {
      return nullptr;
    }
    void* const memory =
        ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    return memory == MAP_FAILED ? nullptr : static_cast<Meeting*>(memory);
  }
  void close() { ::munmap(this, sizeof(Meeting)); }
};

}  // namespace lightcc::cuda::fake
