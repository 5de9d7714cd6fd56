// Streams and events.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "lightcc_cuda/fake_driver/calls.hpp"

namespace cuda = lightcc::cuda;
namespace fake = lightcc::cuda::fake;
using cuda::Option;
using fake::settings;

LIGHTCC_API cuCtxGetStreamPriorityRange(int* lowest, int* highest) {
  LIGHTCC_NEEDS_CONTEXT("cuCtxGetStreamPriorityRange")
  *lowest = 0;
  *highest = fake::kHighestPriority;
  return cuda::kSuccess;
}
LIGHTCC_API cuStreamCreateWithPriority(cuda::StreamHandle** stream, unsigned flags, int priority) {
  LIGHTCC_NEEDS_CONTEXT("cuStreamCreateWithPriority")
  if (flags > cuda::kStreamNonBlocking) {
    return fake::kInvalidValue;
  }
  fake::traffic().count_stream(priority);
  *stream = new cuda::StreamHandle{fake::Stream(
      static_cast<unsigned>(settings().number("delay_us")), fake::contexts.back()->device)};
  ++fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuStreamIsCapturing(cuda::StreamHandle* /*stream*/, int* status) {
  LIGHTCC_NEEDS_CONTEXT("cuStreamIsCapturing")
  *status = settings().number("capturing");
  return cuda::kSuccess;
}
LIGHTCC_API cuThreadExchangeStreamCaptureMode(Option* mode) {
  LIGHTCC_NEEDS_CONTEXT("cuThreadExchangeStreamCaptureMode")
  std::swap(*mode, fake::capture_mode);
  return cuda::kSuccess;
}
LIGHTCC_API cuStreamDestroy_v2(cuda::StreamHandle* stream) {
  delete stream;
  --fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuLaunchHostFunc(cuda::StreamHandle* stream, void (*function)(void*), void* data) {
  LIGHTCC_NEEDS_CONTEXT("cuLaunchHostFunc")
  fake::enqueue(stream, [function, data] { function(data); });
  return cuda::kSuccess;
}
LIGHTCC_API cuStreamSynchronize(cuda::StreamHandle* stream) {
  LIGHTCC_SPOILS_CAPTURE
  LIGHTCC_NEEDS_CONTEXT("cuStreamSynchronize")
  fake::stream_of(stream).add_turn()->wait();
  return settings().failure_of("");
}

LIGHTCC_API cuEventCreate(cuda::EventHandle** event, unsigned flags) {
  LIGHTCC_NEEDS_CONTEXT("cuEventCreate")
  if ((flags & cuda::kEventWithoutTiming) == 0) {
    fake::traffic().count_timed_event();
  }
  *event = new cuda::EventHandle{.flags = flags, .turn = nullptr};
  ++fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuEventDestroy_v2(cuda::EventHandle* event) {
  delete event;
  --fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuEventRecord(cuda::EventHandle* event, cuda::StreamHandle* stream) {
  LIGHTCC_NEEDS_CONTEXT("cuEventRecord")
  event->turn = fake::stream_of(stream).add_turn();
  return cuda::kSuccess;
}
LIGHTCC_API cuEventQuery(cuda::EventHandle* event) {
  LIGHTCC_SPOILS_CAPTURE
  LIGHTCC_NEEDS_CONTEXT("cuEventQuery")
  return event->turn == nullptr || event->turn->is_done() ? cuda::kSuccess : cuda::kErrorNotReady;
}
// The stream waits for what is recorded by now.
LIGHTCC_API cuStreamWaitEvent(cuda::StreamHandle* stream,
                              cuda::EventHandle* event,
                              unsigned flags) {
  LIGHTCC_NEEDS_CONTEXT("cuStreamWaitEvent")
  if (flags != 0) {
    return fake::kInvalidValue;
  }
  if (settings().number("capturing") != 0) {
    ++fake::spoiled_captures;  // The event was recorded outside of the capture.
    return fake::kCaptureIsolation;
  }
  if (event->turn != nullptr) {
    fake::stream_of(stream).add([turn = event->turn] { turn->wait(); });
  }
  return cuda::kSuccess;
}
/// Waits until a word of pinned memory is at least `value`, by which the host holds the stream.
LIGHTCC_API cuStreamWaitValue32_v2(cuda::StreamHandle* stream,
                                   cuda::Address address,
                                   std::uint32_t value,
                                   unsigned flags) {
  LIGHTCC_NEEDS_CONTEXT("cuStreamWaitValue32_v2")
  auto* const word = reinterpret_cast<std::uint32_t*>(address);
  if (flags != 0 || !fake::pinned_memories().has(word, sizeof(*word))) {
    return fake::kInvalidValue;
  }
  fake::stream_of(stream).add([=] {
    while (std::atomic_ref(*word).load() < value) {
      ::usleep(100);
    }
  });
  return cuda::kSuccess;
}
LIGHTCC_API cuEventElapsedTime(float* milliseconds,
                               cuda::EventHandle* first,
                               cuda::EventHandle* last) {
  LIGHTCC_NEEDS_CONTEXT("cuEventElapsedTime")
  for (const cuda::EventHandle* const event : {first, last}) {
    if (event->flags == cuda::kEventWithoutTiming || event->turn == nullptr) {
      return fake::kInvalidHandle;
    }
    if (!event->turn->is_done()) {
      return cuda::kErrorNotReady;
    }
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(last->turn->finished() - first->turn->finished())
          .count();
  return cuda::kSuccess;
}
