// A GPU's primary context, and what is made in it, each freed by the object that owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "lightcc/base/status.hpp"
#include "lightcc/engine/operation.hpp"

#include "lightcc_cuda/driver/driver.hpp"

namespace lightcc::cuda {

/// Holds the primary context of a device, which frameworks share. The driver outlives it.
class Context {
 public:
  /// Errors: kSystem.
  static Result<Context> retain(const Driver& driver, int index);
  const Driver& driver() const { return *driver_; }
  Device device() const { return device_; }
  ContextHandle* handle() const { return handle_.get(); }

 private:
  Context(const Driver& driver, Device device, std::shared_ptr<ContextHandle> handle)
      : driver_(&driver), device_(device), handle_(std::move(handle)) {}

  const Driver* driver_;
  Device device_;
  std::shared_ptr<ContextHandle> handle_;  // Releases it.
};

/// Makes a context the thread's current one, and puts the one before back.
///
/// While another thread captures a CUDA graph in the mode "global", as torch.cuda.graph() does, the
/// driver forbids many calls to all threads, and one of them spoils the capture: asking an event,
/// waiting for a stream, allocating, freeing. So while this is there, the thread has the mode
/// "relaxed", in which it may make them. None of its calls is to be part of a graph.
class CurrentContext {
 public:
  explicit CurrentContext(const Context& context);
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  ~CurrentContext();
  const Status& status() const { return status_; }

 private:
  const Driver& driver_;
  Status status_;
  Option capture_mode_ = kCaptureModeRelaxed;  // The one before, when this has been exchanged.
  bool has_exchanged_;
};

/// What `Free` frees, in the context that is current where it is made.
template <typename Handle, Code (*Functions::*Free)(Handle)>
class Owned {
 public:
  Owned(const Driver& driver, Handle handle) : driver_(&driver), handle_(handle) {}
  Owned(Owned&& other) noexcept
      : driver_(other.driver_), handle_(std::exchange(other.handle_, Handle{})) {}
  Owned& operator=(Owned&&) = delete;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle_ != Handle{}) {
      // At the end of a process the driver may be gone before: nothing is left to be freed then.
      static_cast<void>((driver_->call().*Free)(handle_));
    }
  }
  const Driver& driver() const { return *driver_; }
  Handle get() const { return handle_; }

 private:
  const Driver* driver_;
  Handle handle_;
};

using DeviceMemory = Owned<Address, &Functions::free>;
using HostMemory = Owned<void*, &Functions::free_host>;
using Module = Owned<ModuleHandle*, &Functions::unload_module>;

/// A stream that waits for no other, the default ones included. It is waited for before it goes, so
/// memory that it uses has to go later.
///
/// It has the highest priority, as Horovod's streams have. Other ranks wait for its kernels, which
/// need little, while a backward pass may fill the GPU. A multiprocessor that gets free takes them
/// first. What runs already is not stopped, and copies to and from the host have no priority.
class Stream : public Owned<StreamHandle*, &Functions::destroy_stream> {
 public:
  /// In the current context. Errors: kSystem.
  static Result<Stream> create(const Driver& driver);
  Stream(Stream&&) noexcept = default;
  Stream& operator=(Stream&&) = delete;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  /// Errors: kSystem, also of what was queued. Blocks: yes.
  Status wait() const { return driver().wait_for_stream(get()); }

 private:
  using Owned::Owned;
};

// In the current context. Errors: kSystem.
Result<DeviceMemory> allocate_device_memory(const Driver& driver, std::size_t bytes);
/// Memory that the host reads and writes, and that copies run to and from asynchronously.
Result<HostMemory> allocate_pinned_memory(const Driver& driver, std::size_t bytes);
// Freeing either waits for all streams of the GPU.

/// Whether `stream` is being captured into a CUDA graph, or is a default stream that waits for one
/// that is. Its context is current. Errors: kSystem.
Result<bool> is_captured(const Driver& driver, StreamHandle* stream);
/// Memory of the GPU's pool, for the data path. It comes in the order of `stream`, and goes in that
/// of the last stream, if there is one. Nobody waits. It is gone before both and the driver. For a
/// default stream, the context is current then.
Result<std::shared_ptr<std::byte>> allocate_in_order(
    const Driver& driver,
    std::size_t bytes,
    StreamHandle* stream,
    OutputBuffer::LastStream last_stream = nullptr);
/// The same, of zeros, which goes in the order of `stream`.
Result<std::shared_ptr<std::byte>> allocate_zeros(const Driver& driver,
                                                  std::size_t bytes,
                                                  StreamHandle* stream);
/// Has the pool of a GPU keep what is freed for the next one who asks. Errors: kUnimplemented, it
/// has no pool; kSystem.
Status keep_freed_memory(const Driver& driver, Device device);
}  // namespace lightcc::cuda
