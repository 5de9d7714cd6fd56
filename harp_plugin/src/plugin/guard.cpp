#include "plugin/guard.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <thread>

#include "plugin/core.hpp"

namespace harp::plugin {
namespace {

std::atomic<abi::Logger> the_logger{nullptr};

}  // namespace

void set_logger(abi::Logger logger) noexcept {
  the_logger.store(logger);
}

void log(abi::LogLevel level, const char* where, const char* format, ...) noexcept {
  const abi::Logger logger = the_logger.load();
  if (logger == nullptr) {
    return;
  }
  std::array<char, 1024> text{};
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  // NCCL_DEBUG=INFO shows what is about the start, unless NCCL_DEBUG_SUBSYS asks for networks, too.
  logger(level,
         abi::kLogInit | abi::kLogNet,
         where,
         0,
         "NET/%s : %s: %s",
         kPluginName,
         where,
         text.data());
}

void Net::pause() const {
  std::this_thread::sleep_for(std::chrono::microseconds(50));
}

}  // namespace harp::plugin
