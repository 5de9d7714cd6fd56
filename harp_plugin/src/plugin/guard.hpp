// What stands between NCCL's C calls and C++: nothing thrown crosses, and everything is logged.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <utility>

#include "abi/types.hpp"

namespace harp::plugin {

/// From now on log() writes to `logger`; null: nowhere. Thread: any.
void set_logger(abi::Logger logger) noexcept;

/// Writes one line to NCCL's log. Thread: any.
[[gnu::format(printf, 3, 4)]]
void log(abi::LogLevel level, const char* where, const char* format, ...) noexcept;

/// Runs one entry of a table. `entry` is its name, for the log.
template <typename Body>
abi::Result guard(const char* entry, Body&& body) noexcept {
  try {
    return std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
    log(abi::LogLevel::kWarn, entry, "out of memory");
    return abi::Result::kSystemError;
  } catch (const std::runtime_error& error) {  // The system refused something.
    log(abi::LogLevel::kWarn, entry, "%s", error.what());
    return abi::Result::kSystemError;
  } catch (const std::exception& error) {
    log(abi::LogLevel::kWarn, entry, "%s", error.what());
    return abi::Result::kInternalError;
  } catch (...) {
    log(abi::LogLevel::kWarn, entry, "an unknown exception");
    return abi::Result::kInternalError;
  }
}

}  // namespace harp::plugin
