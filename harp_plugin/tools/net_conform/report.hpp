// Rules and what became of them: one line each, in the order of the table.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sync/mutex.hpp"

namespace net_conform {

/// What NCCL relies on; `id` is "group.name".
struct Rule {
  const char* id;
  const char* text;
};

/// Every rule that there is, by group (rules.cpp).
std::span<const Rule> rules();

enum class Outcome : std::uint8_t { kOk, kSkipped, kFailed };

/// Thread: any.
class Report {
 public:
  /// Records one look at a rule; the first failure and its text stay.
  void note(std::string_view rule, Outcome outcome, const std::string& why = {});
  /// What was noted since the last time, as lines of text, to carry to another process, and back.
  std::string drain();
  void merge(const std::string& lines);
  /// Prints, in the table's order, a line for each rule that has none yet: of those noted, the ones
  /// in `ids` and all that failed; of all, where `ids` is empty.
  void print(std::span<const char* const> ids = {});
  bool has_failed() const;
  bool has(std::string_view rule) const;

 private:
  struct Entry {
    Outcome outcome;
    std::string why;
    bool is_printed = false;
  };
  void note_locked(std::string_view rule, Outcome outcome, const std::string& why)
      HARP_REQUIRES(mutex_);

  mutable harp::Mutex mutex_;
  std::map<std::string, Entry, std::less<>> entries_ HARP_GUARDED_BY(mutex_);
  bool has_failed_ HARP_GUARDED_BY(mutex_) = false;
};

Report& report();

/// Ends a case on one side. Its rule is noted already.
class CaseFailed {};

/// Notes that a rule was kept; getting there is what shows it.
void pass(std::string_view rule);

/// Notes how a rule fared.
[[gnu::format(printf, 3, 4)]]
void check(std::string_view rule, bool holds, const char* format, ...);

/// The same, and ends the case where it does not hold.
[[gnu::format(printf, 3, 4)]]
void require(std::string_view rule, bool holds, const char* format, ...);

void skip(std::string_view rule, const std::string& why);

}  // namespace net_conform
