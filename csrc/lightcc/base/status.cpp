#include "lightcc/base/status.hpp"

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <vector>

namespace lightcc {
namespace {

std::string vformat(const char* format, std::va_list arguments) {
  std::va_list copy;
  va_copy(copy, arguments);
  const int length = std::vsnprintf(nullptr, 0, format, copy);
  va_end(copy);
  if (length < 0) {
    return format;
  }
  std::vector<char> buffer(static_cast<std::size_t>(length) + 1);
  std::vsnprintf(buffer.data(), buffer.size(), format, arguments);
  return {buffer.data(), static_cast<std::size_t>(length)};
}

}  // namespace

const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk:
      return "ok";
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kMismatch:
      return "mismatch";
    case ErrorCode::kPeerFailed:
      return "peer failed";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kShutDown:
      return "shut down";
    case ErrorCode::kSystem:
      return "system error";
    case ErrorCode::kUnimplemented:
      return "unimplemented";
    case ErrorCode::kInternal:
      return "internal error";
  }
  return "unknown error";
}

Status make_error(ErrorCode code, const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::string message = vformat(format, arguments);
  va_end(arguments);
  return {code, std::move(message)};
}

Status make_system_error(ErrorCode code, int error_number, const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::string message = vformat(format, arguments);
  va_end(arguments);
  std::array<char, 128> text{};
  // GNU strerror_r: returns the text, which need not be in the buffer.
  message += ": ";
  message += strerror_r(error_number, text.data(), text.size());
  return {code, std::move(message)};
}

}  // namespace lightcc
