// LIGHTCC_TEST_GPU=N runs the kernels of a test program on GPU N, by the driver that there is. With
// N:all it is an error if a kernel has not run.
//
// A launch copies each allocation that its arguments point into to the GPU, as one of the same size
// there. So compute-sanitizer sees what reads past an array of a test, as AddressSanitizer does on
// the simulator. Operator new is replaced for that: it notes what it gives.
#include <link.h>
#include <pthread.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/driver/kernel_table.hpp"
#include "lightcc_cuda/on_gpu/allocations.hpp"
#include "lightcc_cuda/on_gpu/gpu_launch.hpp"
#include "lightcc_cuda/simulator/kernels.hpp"

namespace lightcc::cuda::testing {
namespace {

/// Null: nothing is noted.
Allocations* noted_allocations = nullptr;

void* allocate(std::size_t bytes, std::size_t alignment) {
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* const memory = alignment <= alignof(std::max_align_t)
                           ? std::malloc(bytes == 0 ? 1 : bytes)
                           : std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  if (noted_allocations != nullptr) {
    noted_allocations->add(memory, bytes);
  }
  return memory;
}

void deallocate(void* memory) noexcept {
  if (noted_allocations != nullptr && memory != nullptr) {
    noted_allocations->remove(memory);
  }
  std::free(memory);
}

/// Names of all kernels, by the functions that the simulator calls.
const std::unordered_map<const void*, const char*>& names() {
#define LIGHTCC_NAME(name, ...) {reinterpret_cast<const void*>(&name), #name},
  static const std::unordered_map<const void*, const char*> kNames{
      LIGHTCC_ALL_KERNELS(LIGHTCC_NAME)};
#undef LIGHTCC_NAME
  return kNames;
}

/// Memory that nobody notes, and that arguments must not point to: the stack, and static objects.
class UnnotedMemory {
 public:
  UnnotedMemory() {
    pthread_attr_t attributes;
    void* first = nullptr;
    std::size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
      pthread_attr_getstack(&attributes, &first, &bytes);
      pthread_attr_destroy(&attributes);
      ranges_.push_back({reinterpret_cast<std::uintptr_t>(first), bytes});
    }
    dl_iterate_phdr(
        [](dl_phdr_info* program, std::size_t, void* ranges) {
          for (int i = 0; i < program->dlpi_phnum; ++i) {
            if (program->dlpi_phdr[i].p_type == PT_LOAD) {
              static_cast<std::vector<Allocation>*>(ranges)->push_back(
                  {program->dlpi_addr + program->dlpi_phdr[i].p_vaddr,
                   program->dlpi_phdr[i].p_memsz});
            }
          }
          return 1;  // The first one is the program.
        },
        &ranges_);
  }
  bool has(std::uintptr_t address) const {
    for (const Allocation& range : ranges_) {
      if (address - range.first < range.bytes) {
        return true;
      }
    }
    return false;
  }

 private:
  std::vector<Allocation> ranges_;
};

/// What one launch has on the GPU, of each allocation of the host.
class Mirrors {
 public:
  Mirrors(const Driver& driver, const Stream& stream, const UnnotedMemory& unnoted)
      : driver_(driver), stream_(stream), unnoted_(unnoted) {}

  /// Replaces every word that points into an allocation by where that is on the GPU.
  Status translate(std::vector<std::byte>& words) {
    for (std::size_t at = 0; at + sizeof(std::uintptr_t) <= words.size();
         at += sizeof(std::uintptr_t)) {
      std::uintptr_t word = 0;
      std::memcpy(&word, words.data() + at, sizeof(word));
      if (const auto found = noted_allocations->find(word); found.has_value()) {
        LIGHTCC_ASSIGN_OR_RETURN(const Address there, mirror(*found));
        const Address address = there + (word - found->first);
        std::memcpy(words.data() + at, &address, sizeof(address));
      } else if (unnoted_.has(word)) {
        return {ErrorCode::kInternal, "a test hands memory to a kernel that is not of the heap"};
      }
    }
    return {};
  }

  /// The rows of a table have the addresses of the GPU, too. It is not copied back.
  Status translate(const Table& table) {
    const auto first = reinterpret_cast<std::uintptr_t>(table.rows);
    const auto found = noted_allocations->find(first);
    if (table.bytes == 0 || !found.has_value()) {
      return {};
    }
    LIGHTCC_ASSIGN_OR_RETURN(const Address there, mirror(*found));
    tables_.insert(found->first);
    const auto* const rows = static_cast<const std::byte*>(table.rows);
    std::vector<std::byte> words(rows, rows + table.bytes);
    LIGHTCC_RETURN_IF_ERROR(translate(words));
    return write(there + (first - found->first), words.data(), words.size());
  }

  Status copy_back() {
    for (const auto& [first, made] : made_) {
      if (!tables_.contains(first)) {
        LIGHTCC_RETURN_IF_ERROR(driver_.check(
            driver_.call().copy_to_host(
                reinterpret_cast<void*>(first), made.memory.get(), made.bytes, stream_.get()),
            "cuMemcpyDtoHAsync"));
      }
    }
    return stream_.wait();
  }

 private:
  struct Mirror {
    DeviceMemory memory;
    std::size_t bytes;
  };

  Status write(Address to, const void* from, std::size_t bytes) {
    LIGHTCC_RETURN_IF_ERROR(driver_.check(
        driver_.call().copy_to_device(to, from, bytes, stream_.get()), "cuMemcpyHtoDAsync"));
    return stream_.wait();
  }

  Result<Address> mirror(const Allocation& of) {
    if (of.bytes == 0) {
      return Address{0};
    }
    if (const auto known = made_.find(of.first); known != made_.end()) {
      return known->second.memory.get();
    }
    LIGHTCC_ASSIGN_OR_RETURN(DeviceMemory memory, allocate_device_memory(driver_, of.bytes));
    const Address there = memory.get();
    made_.emplace(of.first, Mirror{std::move(memory), of.bytes});
    LIGHTCC_RETURN_IF_ERROR(write(there, reinterpret_cast<const void*>(of.first), of.bytes));
    return there;
  }

  const Driver& driver_;
  const Stream& stream_;
  const UnnotedMemory& unnoted_;
  std::map<std::uintptr_t, Mirror> made_;
  std::set<std::uintptr_t> tables_;
};

/// A GPU with all kernels, whose context is current on the thread that made it.
class OnGpu final : public GpuLauncher {
 public:
  /// In the order in which they are made: each needs those before it.
  Status open(int index) {
    LIGHTCC_ASSIGN_OR_RETURN(Driver driver, Driver::open());
    driver_ = std::make_unique<Driver>(std::move(driver));
    LIGHTCC_ASSIGN_OR_RETURN(Context context, Context::retain(*driver_, index));
    context_ = std::make_unique<Context>(std::move(context));
    current_ = std::make_unique<CurrentContext>(*context_);
    LIGHTCC_RETURN_IF_ERROR(current_->status());
    LIGHTCC_ASSIGN_OR_RETURN(KernelTable kernels, KernelTable::load(*driver_));
    kernels_ = std::make_unique<KernelTable>(std::move(kernels));
    LIGHTCC_ASSIGN_OR_RETURN(Stream stream, Stream::create(*driver_));
    stream_ = std::make_unique<Stream>(std::move(stream));
    return driver_->check(driver_->call().device_bytes(&memory_bytes_, context_->device()),
                          "cuDeviceTotalMem");
  }

  std::string launch(const GpuLaunch& launch) override {
    const auto name = names().find(launch.kernel);
    if (name == names().end()) {
      return "the library has no such kernel";
    }
    ran_.insert(name->second);
    ++launches_;
    const Status done = run(launch, kernels_->find(name->second));
    return done.ok() ? "" : std::string(name->second) + ": " + done.message();
  }
  void add_memory(const void* first, std::size_t bytes) override {
    noted_allocations->add(first, bytes);
  }
  void remove_memory(const void* first) override { noted_allocations->remove(first); }
  std::size_t memory_bytes() override { return memory_bytes_; }

  std::size_t launches() const { return launches_; }
  /// Kernels that no test has launched.
  std::vector<std::string> left_out() const {
    std::vector<std::string> found;
    for (const std::string& name : kernel_names()) {
      if (!ran_.contains(name)) {
        found.push_back(name);
      }
    }
    return found;
  }

 private:
  Status run(const GpuLaunch& launch, FunctionHandle* kernel) {
    Mirrors mirrors(*driver_, *stream_, unnoted_);
    const auto* const given = static_cast<const std::byte*>(launch.arguments);
    std::vector<std::byte> arguments(given, given + launch.bytes);
    LIGHTCC_RETURN_IF_ERROR(mirrors.translate(arguments));
    for (const Table& table : launch.tables) {
      LIGHTCC_RETURN_IF_ERROR(mirrors.translate(table));
    }
    std::array<void*, 1> pointers{arguments.data()};
    LIGHTCC_RETURN_IF_ERROR(driver_->check(driver_->call().launch(kernel,
                                                                  launch.blocks,
                                                                  1,
                                                                  1,
                                                                  launch.threads,
                                                                  1,
                                                                  1,
                                                                  0,
                                                                  stream_->get(),
                                                                  pointers.data(),
                                                                  nullptr),
                                           "cuLaunchKernel"));
    LIGHTCC_RETURN_IF_ERROR(stream_->wait());
    return mirrors.copy_back();
  }

  std::unique_ptr<Driver> driver_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<CurrentContext> current_;
  std::unique_ptr<KernelTable> kernels_;
  std::unique_ptr<Stream> stream_;
  UnnotedMemory unnoted_;
  std::size_t memory_bytes_ = 0;
  std::size_t launches_ = 0;
  std::set<std::string, std::less<>> ran_;
};

/// As long as tests run.
class GpuEnvironment final : public ::testing::Environment {
 public:
  GpuEnvironment(int index, bool wants_all) : index_(index), wants_all_(wants_all) {}

  void SetUp() override {
    auto made = std::make_unique<OnGpu>();
    const Status opened = made->open(index_);
    ASSERT_TRUE(opened.ok()) << "LIGHTCC_TEST_GPU=" << index_ << ": " << opened.message();
    on_gpu_ = std::move(made);
    noted_allocations = new Allocations;  // For ever: something may be freed after all else.
    gpu_launcher = on_gpu_.get();
  }
  void TearDown() override {
    if (on_gpu_ == nullptr) {
      return;
    }
    const std::vector<std::string> left_out = on_gpu_->left_out();
    std::printf("kernels that ran on GPU %d: %zu of %zu, in %zu launches\n",
                index_,
                kernel_names().size() - left_out.size(),
                kernel_names().size(),
                on_gpu_->launches());
    if (wants_all_) {
      EXPECT_EQ(left_out, std::vector<std::string>());
    }
    gpu_launcher = nullptr;
    on_gpu_.reset();
  }

 private:
  int index_;
  bool wants_all_;
  std::unique_ptr<OnGpu> on_gpu_;
};

[[maybe_unused]] const bool is_asked_for = [] {
  const char* const text = std::getenv("LIGHTCC_TEST_GPU");
  if (text != nullptr) {
    ::testing::AddGlobalTestEnvironment(
        new GpuEnvironment(std::atoi(text), std::string_view(text).ends_with(":all")));
  }
  return text != nullptr;
}();

}  // namespace
}  // namespace lightcc::cuda::testing

namespace allocations = lightcc::cuda::testing;

void* operator new(std::size_t bytes) {
  return allocations::allocate(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocations::allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  allocations::deallocate(memory);
}
void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  allocations::deallocate(memory);
}
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept {
  allocations::deallocate(memory);
}
void operator delete(void* memory, std::size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  allocations::deallocate(memory);
}
