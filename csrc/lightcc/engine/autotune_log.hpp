// The file in which autotune tells what it tried, as Horovod does: one line of CSV for each setting
// with its score, and the winner again as the last.
#pragma once

#include <fstream>
#include <string>

#include "lightcc/fusion/autotuner.hpp"

namespace lightcc {

/// Thread: one at a time. Each line is in the file when write() returns.
class AutotuneLog {
 public:
  /// Empties the file, or makes it. An empty path means no log; one that cannot be written is
  /// warned about, and the job goes on without.
  explicit AutotuneLog(const std::string& path);
  void write(const Autotuner::Sample& sample);

 private:
  std::ofstream file_;
};

}  // namespace lightcc
