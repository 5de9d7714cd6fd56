// What a fake was made to do.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <string>
#include <utility>

namespace lightcc::cuda::fake {

/// A GPU's error stays. From 800 on it is the call's.
inline constexpr bool is_sticky(int code) {
  return code >= 700 && code < 800;
}

class Settings {
 public:
  using Values = std::map<std::string, std::string>;

  /// As the environment variable says, with `defaults` beside that.
  Settings(const char* variable, Values defaults) : defaults_(std::move(defaults)) {
    const char* const text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe)
    set(text != nullptr ? text : "");
  }

  void set(const std::string& text) {
    const std::lock_guard lock(mutex_);
    values_ = defaults_;
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, ',');) {
      const std::size_t equals = part.find('=');
      values_[part.substr(0, equals)] = part.substr(equals + 1);
    }
    calls_ = 0;
    fault_ = 0;
    ++settings_;
  }

  /// Changes with each set().
  int current() const { return settings_; }

  /// Whether the copy to the host that is the `turn`-th one of a GPU waits for other settings.
  bool holds(int device, int turn) {
    const std::lock_guard lock(mutex_);
    int held = 0;
    int allowed = 0;
    return std::sscanf(values_["hold"].c_str(), "%d:%d", &held, &allowed) == 2 && device == held &&
           turn > allowed;
  }

  int number(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(name);
    return found == values_.end() ? 0 : std::atoi(found->second.c_str());
  }

  std::string text(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return values_[name];
  }

  /// Whether the library has a function, which `without` may name.
  bool has(const std::string& function) {
    const std::lock_guard lock(mutex_);
    return values_["without"] != function;
  }

  /// What a call returns without doing anything; 0: it does what it should.
  int failure_of(const std::string& call) {
    const std::lock_guard lock(mutex_);
    const std::string plan = values_["fail"];
    const std::size_t colon = plan.find(':');
    int code = 0;
    int turn = 0;
    if (fault_ == 0 && colon != std::string::npos && plan.substr(0, colon) == call &&
        std::sscanf(plan.c_str() + colon, ":%d:%d", &code, &turn) == 2 &&
        (turn == 0 || ++calls_ == turn)) {
      if (is_sticky(code)) {
        fault_ = code;
      }
      return code;
    }
    return fault_;
  }

  /// A kernel went wrong.
  void break_down(int code) { fault_ = code; }
  bool is_broken() const { return fault_ != 0; }

 private:
  const Values defaults_;
  std::mutex mutex_;
  Values values_;
  int calls_ = 0;
  std::atomic<int> fault_{0};
  std::atomic<int> settings_{0};
};

}  // namespace lightcc::cuda::fake
