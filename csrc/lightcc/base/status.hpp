// The one way a fallible call in lightcc's core says how it went.
//
// A Status is ok, or an ErrorCode with a message written by the first function that knew what went
// wrong (callers pass it on silently). Functions that also return a value return Result<T>. "Would
// block" is not an error: such functions say so in their value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "lightcc/base/export.hpp"

namespace lightcc {

/// What went wrong, coarse enough that a caller can choose what to do next.
enum class ErrorCode : std::uint8_t {
  kOk = 0,
  kInvalidArgument = 1,  ///< The caller's fault, this rank only: fix the call (ValueError).
  kMismatch = 2,         ///< Ranks disagree about one operation; the world goes on.
  kPeerFailed = 3,       ///< A rank died, hung up or broke the protocol; the world is over.
  kTimeout = 4,          ///< A rank stayed silent for too long; the world is over.
  kShutDown = 5,         ///< The world was shut down, here or by another rank.
  kSystem = 6,           ///< The operating system refused (memory, descriptors, sockets).
  kUnimplemented = 7,    ///< Not to be had here; the message says what is.
  kInternal = 8,         ///< An invariant of lightcc does not hold: a bug.
};

/// Name of `code` as used in messages and documentation ("peer failed").
LIGHTCC_EXPORT const char* error_code_name(ErrorCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorCode code, std::string message, int rank = -1)
      : code_(code), rank_(rank), message_(std::move(message)) {}

  static Status ok_status() { return {}; }

  bool ok() const { return code_ == ErrorCode::kOk; }
  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  /// The rank at fault, or -1 where there is none or it is not known.
  int rank() const { return rank_; }

 private:
  ErrorCode code_ = ErrorCode::kOk;
  std::int32_t rank_ = -1;
  std::string message_;
};

/// A Status made printf-style.
LIGHTCC_EXPORT [[gnu::format(printf, 2, 3)]] Status make_error(ErrorCode code,
                                                               const char* format,
                                                               ...);
/// The same, with ": <strerror(error_number)>" appended. `error_number` is an errno value.
[[gnu::format(printf, 3, 4)]] Status make_system_error(ErrorCode code,
                                                       int error_number,
                                                       const char* format,
                                                       ...);

/// A value or the Status that explains why there is none. Never holds an ok Status.
template <typename T>
class [[nodiscard]] Result {
 public:
  // Both implicit by design: a function returns the value or the Status as it is.
  Result(T value)  // NOLINT(google-explicit-constructor)
      : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status)  // NOLINT(google-explicit-constructor)
      : state_(std::in_place_index<1>, std::move(status)) {}

  bool ok() const { return state_.index() == 0; }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  /// Ok when there is a value.
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace lightcc

#define LIGHTCC_CONCAT_INNER(a, b) a##b
#define LIGHTCC_CONCAT(a, b) LIGHTCC_CONCAT_INNER(a, b)

/// Returns from the enclosing function when `expression` (a Status) is not ok.
#define LIGHTCC_RETURN_IF_ERROR(expression)              \
  do {                                                   \
    if (::lightcc::Status s_ = (expression); !s_.ok()) { \
      return s_;                                         \
    }                                                    \
  } while (false)

/// Declares or assigns `target` from a Result, or returns its Status.
// NOLINTBEGIN(bugprone-macro-parentheses): `target` may be a declaration, which takes none.
#define LIGHTCC_ASSIGN_OR_RETURN(target, expression) \
  LIGHTCC_ASSIGN_OR_RETURN_INNER(LIGHTCC_CONCAT(result_, __LINE__), target, expression)
#define LIGHTCC_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                      \
  if (!result.ok()) {                                              \
    return result.status();                                        \
  }                                                                \
  target = std::move(result).value()
// NOLINTEND(bugprone-macro-parentheses)
