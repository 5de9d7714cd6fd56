// A list that one side fills and the other empties, again and again, without allocating each time.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace lightcc {

/// Two vectors that change places. Thread: one at a time.
template <typename T>
class DoubleBuffer {
 public:
  void push_back(T element) { filling_.push_back(std::move(element)); }
  template <typename... Arguments>
  T& emplace_back(Arguments&&... arguments) {
    return filling_.emplace_back(std::forward<Arguments>(arguments)...);
  }
  bool empty() const { return filling_.empty(); }
  /// What was added since the last call. Valid until the next one, and the caller's meanwhile:
  /// additions go elsewhere.
  std::vector<T>& take() {
    taken_.clear();
    std::swap(filling_, taken_);
    return taken_;
  }

 private:
  std::vector<T> filling_;
  std::vector<T> taken_;
};

}  // namespace lightcc
