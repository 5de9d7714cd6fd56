#include "lightcc_cuda/nccl/side_call.hpp"

#include <pthread.h>

#include <system_error>
#include <utility>

namespace lightcc::cuda {

SideCall::SideCall(const Context& context, std::function<NcclCode()> call)
    : context_(context), call_(std::move(call)) {
  try {
    thread_ = std::thread([this] {
      (void)::pthread_setname_np(::pthread_self(), "lightcc-nccl-ab");
      run();
    });
  } catch (const std::system_error&) {
    run();
  }
}

SideCall::~SideCall() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

void SideCall::run() {
  const CurrentContext current(context_);  // Where the GPU is broken there is none, and no need.
  code_ = call_();
  is_over_.store(true, std::memory_order_release);
}

}  // namespace lightcc::cuda
