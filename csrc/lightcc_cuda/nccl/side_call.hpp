// Calls of NCCL that wait for the GPU: ncclCommAbort().
//
// It frees memory of the GPU, for which the driver waits until all of its work has ended. That may
// be an operation of another communicator, whose peer is dead: it ends when that communicator is
// aborted, and not before. So each of these calls has a thread of its own, and others go on.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "lightcc_cuda/driver/context.hpp"
#include "lightcc_cuda/nccl/functions.hpp"

namespace lightcc::cuda {

class SideCall {
 public:
  /// Begins `call`, with `context` current, which outlives this. Blocks: only where the system
  /// gives no thread. Then the call is made here.
  SideCall(const Context& context, std::function<NcclCode()> call);
  SideCall(const SideCall&) = delete;
  SideCall& operator=(const SideCall&) = delete;
  /// Blocks: until the call is over, which may be never.
  ~SideCall();

  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  /// Valid once it is over.
  NcclCode code() const { return code_; }

 private:
  void run();

  const Context& context_;
  std::function<NcclCode()> call_;
  NcclCode code_ = kNcclSuccess;
  std::atomic<bool> is_over_{false};  // Set after the code.
  std::thread thread_;                // The last, as it uses the others.
};

}  // namespace lightcc::cuda
