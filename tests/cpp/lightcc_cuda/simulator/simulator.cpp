#include "lightcc_cuda/simulator/simulator.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "lightcc_cuda/kernels/portable.hpp"

#if !defined(__x86_64__)
#error "the simulator switches stacks on x86-64 only"
#endif

// Present in a program with a sanitizer only.
#define LIGHTCC_WEAK extern "C" [[gnu::weak]]
LIGHTCC_WEAK void* __tsan_create_fiber(unsigned flags);
LIGHTCC_WEAK void* __tsan_get_current_fiber();
LIGHTCC_WEAK void __tsan_switch_to_fiber(void* fiber, unsigned flags);
LIGHTCC_WEAK void __tsan_acquire(void* address);
LIGHTCC_WEAK void __tsan_release(void* address);
LIGHTCC_WEAK void __sanitizer_start_switch_fiber(void** fake, const void* bottom, size_t bytes);
LIGHTCC_WEAK void __sanitizer_finish_switch_fiber(void* fake, const void** bottom, size_t* bytes);
LIGHTCC_WEAK void __asan_poison_memory_region(const volatile void* from, size_t bytes);
LIGHTCC_WEAK void __asan_unpoison_memory_region(const volatile void* from, size_t bytes);

// Leaves the registers that a call preserves on the stack, and the stack's end in *from; goes on
// with what another stack has there.
extern "C" void lightcc_simulator_switch(void** from, void* to);
asm(R"(
.text
.type lightcc_simulator_switch, @function
lightcc_simulator_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size lightcc_simulator_switch, . - lightcc_simulator_switch
)");

namespace lightcc::cuda::simulator {
namespace {

constexpr std::size_t kStackBytes = std::size_t{128} << 10;
constexpr std::size_t kSharedBytes = std::size_t{48} << 10;  // What every GPU has without asking.
constexpr std::size_t kGapBytes = 64;
constexpr std::uint64_t kMaxSpins = 3'000'000;

/// Where fibers meet. `turn` counts the meetings.
struct Gate {
  const char* name = "";
  std::uint64_t turn = 0;
  u32 arrived = 0;
};

/// A stack that can be switched to.
struct Stack {
  void* end = nullptr;
  void* tsan = nullptr;
  void* fake = nullptr;
  const void* bottom = nullptr;
  std::size_t bytes = 0;
};

struct Fiber {
  Stack stack;
  std::unique_ptr<std::byte[]> memory;
  Gate* waits = nullptr;
  std::uint64_t turn = 0;  ///< The gate's, when it began to wait.
  bool done = true;
  ThreadIndex index;
};

struct Warp {
  Gate gate{.name = "a warp's vote or read_lane_across()"};
  std::array<u32, kWarpLanes> in{};
  std::array<std::array<u32, kWarpLanes>, 2> out{};  ///< By turn: some lanes may be one ahead.
};

struct Block {
  void (*kernel)(const void*) = nullptr;
  const void* arguments = nullptr;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Gate gate{.name = "sync_block()"};
  std::unique_ptr<std::byte[]> shared;
  std::size_t shared_used = 0;
  std::vector<std::pair<const void*, std::byte*>> sites;
  Stack scheduler;
  Fiber* running = nullptr;
  std::uint64_t spins = 0;
  std::string error;
  // Addresses that stand, for TSan, for the block's begin, its end, and a fiber that waits. The
  // last orders nothing unless the block is given up.
  char begin = 0;
  char end = 0;
  char waiting = 0;
};

thread_local Block* block_of_thread = nullptr;

/// The block that runs on this thread of the system. Out of line: a fiber may go on on another
/// thread, and compilers keep the address of what is thread-local.
[[gnu::noinline]] Block& current_block() {
  asm volatile("");
  return *block_of_thread;
}

std::atomic<std::uint64_t> all_switches{0};

// Blocks are used again: TSan's clocks grow with every fiber ever made.
std::mutex pool_mutex;
std::vector<Block*>& pool() {
  static auto* blocks = new std::vector<Block*>;  // Threads may end after static objects do.
  return *blocks;
}

void acquire(void* address) {
  if (__tsan_acquire != nullptr) {
    __tsan_acquire(address);
  }
}

void release(void* address) {
  if (__tsan_release != nullptr) {
    __tsan_release(address);
  }
}

void leave(Stack& from, Stack& to) {
  if (__sanitizer_start_switch_fiber != nullptr) {
    __sanitizer_start_switch_fiber(&from.fake, to.bottom, to.bytes);
  }
  if (__tsan_switch_to_fiber != nullptr) {
    constexpr unsigned kOrdersNothing = 1;
    __tsan_switch_to_fiber(to.tsan, kOrdersNothing);
  }
  lightcc_simulator_switch(&from.end, to.end);
}

/// After a switch. `from` is the scheduler's stack where it is not known yet.
void arrive(Stack& now, Stack* from) {
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(now.fake,
                                    from != nullptr ? &from->bottom : nullptr,
                                    from != nullptr ? &from->bytes : nullptr);
  }
}

/// Back to the scheduler, until it is this fiber's turn again.
void pause() {
  release(&current_block().waiting);
  Stack& mine = current_block().running->stack;
  leave(mine, current_block().scheduler);
  arrive(mine, &current_block().scheduler);
}

/// Waits for `count` fibers at a gate. The last one calls `complete` before any goes on.
template <typename Complete>
void meet(Gate& gate, u32 count, bool orders_memory, const Complete& complete) {
  if (orders_memory) {
    release(&gate);
  }
  if (++gate.arrived == count) {
    complete();
    gate.arrived = 0;
    ++gate.turn;
  } else {
    Fiber& mine = *current_block().running;
    mine.waits = &gate;
    mine.turn = gate.turn;
    pause();
    mine.waits = nullptr;
  }
  if (orders_memory) {
    acquire(&gate);
  }
}

Warp& warp_of(const ThreadIndex& index) {
  return current_block().warps[index.thread / kWarpLanes];
}

/// What each lane of the warp brought. Orders no memory, as on a GPU.
const std::array<u32, kWarpLanes>& exchange(u32 value) {
  const ThreadIndex& index = current_thread();
  Warp& warp = warp_of(index);
  auto& out = warp.out[warp.gate.turn % 2];
  warp.in[index.thread % kWarpLanes] = value;
  meet(warp.gate, kWarpLanes, false, [&] { out = warp.in; });
  return out;
}

void run_fiber() {
  arrive(current_block().running->stack, &current_block().scheduler);
  for (;;) {
    acquire(&current_block().begin);
    current_block().kernel(current_block().arguments);
    release(&current_block().end);
    current_block().running->done = true;
    pause();
  }
}

void make_stack(Fiber& fiber) {
  fiber.memory = std::make_unique<std::byte[]>(kStackBytes);
  const auto top = std::bit_cast<std::uintptr_t>(fiber.memory.get() + kStackBytes) & ~63UL;
  auto** end = std::bit_cast<void**>(top);
  *--end = nullptr;  // The return address of run_fiber(), which keeps the stack's alignment.
  *--end = std::bit_cast<void*>(&run_fiber);
  constexpr int kSavedRegisters = 6;
  fiber.stack.end = end - kSavedRegisters;
  fiber.stack.tsan = __tsan_create_fiber != nullptr ? __tsan_create_fiber(0) : nullptr;
  fiber.stack.bottom = fiber.memory.get();
  fiber.stack.bytes = kStackBytes;
}

/// Blocks whose fibers are in the middle of something, for ever.
std::vector<Block*>& given_up() {
  static auto* blocks = new std::vector<Block*>;
  return *blocks;
}

Block* take_block(u32 threads) {
  {
    const std::lock_guard lock(pool_mutex);
    for (Block*& made : pool()) {
      if (made->fibers.size() == threads) {
        std::swap(made, pool().back());
        Block* taken = pool().back();
        pool().pop_back();
        return taken;
      }
    }
  }
  auto* made = new Block;  // The pool's, for ever.
  made->fibers = std::vector<Fiber>(threads);
  made->warps = std::vector<Warp>(threads / kWarpLanes);
  for (Fiber& fiber : made->fibers) {
    make_stack(fiber);
  }
  return made;
}

void prepare(Block& b, u32 block_index, u32 grid_blocks) {
  b.shared = std::make_unique<std::byte[]>(kSharedBytes);  // Anew, for TSan.
  std::memset(b.shared.get(), 0xCD, kSharedBytes);
  if (__asan_poison_memory_region != nullptr) {
    __asan_poison_memory_region(b.shared.get(), kSharedBytes);
  }
  b.shared_used = 0;
  b.spins = 0;
  b.sites.clear();
  b.error.clear();
  const auto threads = static_cast<u32>(b.fibers.size());
  for (u32 i = 0; i < threads; ++i) {
    Fiber& fiber = b.fibers[i];
    fiber.done = false;
    fiber.waits = nullptr;
    fiber.index = {i, block_index, threads, grid_blocks};
  }
}

std::string stuck(const Block& b, u32 left) {
  const auto waiting = std::ranges::find_if(b.fibers, [](const Fiber& f) { return !f.done; });
  return "block " + std::to_string(waiting->index.block) + ": thread " +
         std::to_string(waiting->index.thread) + " waits at " + waiting->waits->name +
         " for ever; " + std::to_string(left) + " of " + std::to_string(b.fibers.size()) +
         " threads have not ended";
}

/// Runs all fibers to their end. False: `b.error` says why not, or another block is stuck.
bool run_block(Block& b, std::mt19937_64& random, const std::atomic<bool>& good) {
  std::vector<Fiber*> order;
  for (Fiber& fiber : b.fibers) {
    order.push_back(&fiber);
  }
  release(&b.begin);
  auto left = static_cast<u32>(order.size());
  while (left > 0) {
    std::ranges::shuffle(order, random);
    bool moved = false;
    for (Fiber* fiber : order) {
      if (fiber->done || (fiber->waits != nullptr && fiber->waits->turn == fiber->turn)) {
        continue;
      }
      moved = true;
      all_switches.fetch_add(1, std::memory_order_relaxed);  // A statistic.
      b.running = fiber;
      leave(b.scheduler, fiber->stack);
      arrive(b.scheduler, nullptr);
      if (!b.error.empty() || !good) {
        return false;
      }
      left -= fiber->done ? 1 : 0;
    }
    if (!moved) {
      b.error = stuck(b, left);
      return false;
    }
  }
  acquire(&b.end);
  return true;
}

}  // namespace

const ThreadIndex& current_thread() {
  return current_block().running->index;
}

void meet_block() {
  meet(current_block().gate, static_cast<u32>(current_block().fibers.size()), true, [] {});
}

u32 vote(bool yes) {
  const auto& said = exchange(yes ? 1 : 0);
  u32 result = 0;
  for (u32 lane = 0; lane < kWarpLanes; ++lane) {
    result |= said[lane] << lane;
  }
  return result;
}

u32 read_lane_across(u32 value, u32 distance) {
  return exchange(value)[(current_thread().thread ^ distance) % kWarpLanes];
}

void* shared_memory(const void* site, std::size_t bytes) {
  Block& b = current_block();
  for (const auto& [known, memory] : b.sites) {
    if (known == site) {
      return memory;
    }
  }
  std::byte* memory = b.shared.get() + b.shared_used;
  b.shared_used += (bytes + kGapBytes - 1) / kGapBytes * kGapBytes + kGapBytes;
  if (b.shared_used > kSharedBytes) {
    b.error = "more shared memory than 48 KiB";
    pause();  // The scheduler does not come back.
  }
  if (__asan_unpoison_memory_region != nullptr) {
    __asan_unpoison_memory_region(memory, bytes);
  }
  b.sites.emplace_back(site, memory);
  return memory;
}

void spin() {
  if (++current_block().spins > kMaxSpins) {
    current_block().error = "block " + std::to_string(current_thread().block) + ": thread " +
                            std::to_string(current_thread().thread) + " spins for ever";
  }
  pause();
}

std::uint64_t switches() {
  return all_switches;
}

std::string launch(const Shape& shape, void (*kernel)(const void*), const void* arguments) {
  std::vector<u32> order;
  for (u32 i = shape.first_block; i < (shape.end_block != 0 ? shape.end_block : shape.blocks);
       ++i) {
    order.push_back(i);
  }
  std::mt19937_64 random(shape.seed);
  std::ranges::shuffle(order, random);
  std::atomic<std::size_t> next{0};
  std::atomic<bool> good{true};
  std::mutex mutex;
  std::string error;
  char begin = 0;  // A stream orders launches: TSan sees these addresses.
  char end = 0;
  release(&begin);
  const auto work = [&](std::uint64_t seed) {
    acquire(&begin);
    Block* const mine = take_block(shape.threads);
    block_of_thread = mine;
    mine->kernel = kernel;
    mine->arguments = arguments;
    mine->scheduler.tsan =
        __tsan_get_current_fiber != nullptr ? __tsan_get_current_fiber() : nullptr;
    std::mt19937_64 shuffles(seed);
    for (std::size_t i = next++; good && i < order.size(); i = next++) {
      prepare(*mine, order[i], shape.blocks);
      if (!run_block(*mine, shuffles, good)) {
        good = false;
        acquire(&mine->waiting);
        const std::lock_guard lock(mutex);
        error = error.empty() ? mine->error : error;
        given_up().push_back(mine);
        release(&end);
        return;
      }
    }
    const std::lock_guard lock(pool_mutex);
    pool().push_back(mine);
    release(&end);
  };
  std::vector<std::thread> threads;
  for (u32 i = 1; i < shape.system_threads; ++i) {
    threads.emplace_back(work, random());
  }
  work(random());
  for (std::thread& thread : threads) {
    thread.join();
  }
  acquire(&end);
  return error;
}

}  // namespace lightcc::cuda::simulator
