#include "report.hpp"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <sstream>

namespace net_conform {
namespace {

void note_failure(std::string_view rule, const char* format, std::va_list arguments) {
  std::array<char, 512> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  report().note(rule, Outcome::kFailed, text.data());
}

const char* word_for(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kSkipped:
      return "skip";
    case Outcome::kFailed:
      break;
  }
  return "FAIL";
}

}  // namespace

void Report::note(std::string_view rule, Outcome outcome, const std::string& why) {
  const harp::MutexLock lock(mutex_);
  note_locked(rule, outcome, why);
}

void Report::note_locked(std::string_view rule, Outcome outcome, const std::string& why) {
  const auto [entry, is_new] = entries_.try_emplace(std::string(rule), Entry{outcome, why, false});
  if (!is_new && outcome > entry->second.outcome) {
    // Not printed yet: a line that said ok is followed by one that says FAIL.
    entry->second = {outcome, why, false};
  }
  has_failed_ = has_failed_ || outcome == Outcome::kFailed;
}

std::string Report::drain() {
  const harp::MutexLock lock(mutex_);
  std::string lines;
  for (const auto& [rule, entry] : entries_) {
    lines +=
        rule + '\t' + std::to_string(static_cast<int>(entry.outcome)) + '\t' + entry.why + '\n';
  }
  entries_.clear();
  return lines;
}

void Report::merge(const std::string& lines) {
  std::istringstream stream(lines);
  std::string rule;
  std::string outcome;
  std::string why;
  while (std::getline(stream, rule, '\t') && std::getline(stream, outcome, '\t') &&
         std::getline(stream, why)) {
    note(rule, static_cast<Outcome>(std::stoi(outcome)), why.empty() ? why : "at the peer: " + why);
  }
}

void Report::print(std::span<const char* const> ids) {
  const harp::MutexLock lock(mutex_);
  for (const Rule& rule : rules()) {
    const auto found = entries_.find(std::string_view(rule.id));
    if (found == entries_.end() || found->second.is_printed) {
      continue;
    }
    Entry& entry = found->second;
    const auto is_this = [&](const char* id) { return std::string_view(id) == rule.id; };
    if (!ids.empty() && entry.outcome != Outcome::kFailed && std::ranges::none_of(ids, is_this)) {
      continue;
    }
    entry.is_printed = true;
    std::printf("%-4s  %-28s %s%s%s\n",
                word_for(entry.outcome),
                rule.id,
                rule.text,
                entry.why.empty() ? "" : ": ",
                entry.why.c_str());
  }
  std::fflush(stdout);
}

bool Report::has_failed() const {
  const harp::MutexLock lock(mutex_);
  return has_failed_;
}

bool Report::has(std::string_view rule) const {
  const harp::MutexLock lock(mutex_);
  return entries_.contains(rule);
}

Report& report() {
  static Report the_report;
  return the_report;
}

void pass(std::string_view rule) {
  report().note(rule, Outcome::kOk);
}

void check(std::string_view rule, bool holds, const char* format, ...) {
  if (holds) {
    pass(rule);
    return;
  }
  std::va_list arguments;
  va_start(arguments, format);
  note_failure(rule, format, arguments);
  va_end(arguments);
}

void require(std::string_view rule, bool holds, const char* format, ...) {
  if (holds) {
    pass(rule);
    return;
  }
  std::va_list arguments;
  va_start(arguments, format);
  note_failure(rule, format, arguments);
  va_end(arguments);
  throw CaseFailed();
}

void skip(std::string_view rule, const std::string& why) {
  report().note(rule, Outcome::kSkipped, why);
}

}  // namespace net_conform
