// Timelines as they are read again: what is on rows of GPUs, and on lanes.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::cuda::testing {

/// Times are microseconds.
struct Slice {
  std::string row;
  std::string name;
  std::string what;
  std::string tensor;
  std::string failed;
  std::int64_t bytes = 0;  // -1: it does not say.
  std::int64_t bucket_bytes = 0;
  std::int64_t sequence = -1;
  double begin = 0;
  double end = 0;
};

/// One file. Each event has a line of its own.
class TimelineFile {
 public:
  explicit TimelineFile(const std::string& path) {
    std::ifstream file(path);
    EXPECT_TRUE(file.is_open()) << path;
    std::map<std::int64_t, std::string> rows;
    for (std::string line; std::getline(file, line);) {
      const std::int64_t pid = number(line, "pid");
      if (text(line, "name") == "process_name" && line.find("{\"name\"", 1) != std::string::npos) {
        rows[pid] = text(line.substr(line.find("\"args\"")), "name");
      } else if (text(line, "name") == "lightcc_device") {
        double& error = errors_[rows.at(pid)];
        error = std::max(error, real(line, "error_us"));
      } else if (text(line, "ph") == "X" && line.find("\"tensors\"") != std::string::npos) {
        const double begin = real(line, "ts");
        slices_.push_back({.row = rows.at(pid),
                           .name = text(line, "name"),
                           .what = text(line, "what"),
                           .tensor = text(line, "tensor"),
                           .failed = text(line, "failed"),
                           .bytes = number(line, "bytes"),
                           .bucket_bytes = number(line, "bucket_bytes"),
                           .sequence = number(line, "sequence"),
                           .begin = begin,
                           .end = begin + real(line, "dur")});
      }
    }
  }

  /// In the order of the file.
  std::vector<Slice> on(const std::string& row) const {
    std::vector<Slice> found;
    for (const Slice& slice : slices_) {
      if (slice.row == row) {
        found.push_back(slice);
      }
    }
    return found;
  }
  /// The slices of all GPUs.
  std::vector<Slice> of_gpus() const {
    std::vector<Slice> found;
    for (const Slice& slice : slices_) {
      if (slice.row.starts_with("GPU")) {
        found.push_back(slice);
      }
    }
    return found;
  }
  /// What times of the row are wrong by at most; it has said that.
  double error_of(const std::string& row) const {
    EXPECT_TRUE(errors_.contains(row)) << row;
    return errors_.contains(row) ? errors_.at(row) : 0.0;
  }

 private:
  static std::string text(const std::string& line, const std::string& key) {
    const std::string begin = '"' + key + "\": \"";
    const std::size_t at = line.find(begin);
    return at == std::string::npos
               ? std::string()
               : line.substr(at + begin.size(),
                             line.find('"', at + begin.size()) - at - begin.size());
  }
  static double real(const std::string& line, const std::string& key) {
    const std::string begin = '"' + key + "\": ";
    const std::size_t at = line.find(begin);
    return at == std::string::npos ? -1.0 : std::strtod(line.c_str() + at + begin.size(), nullptr);
  }
  static std::int64_t number(const std::string& line, const std::string& key) {
    return static_cast<std::int64_t>(real(line, key));
  }

  std::vector<Slice> slices_;
  std::map<std::string, double> errors_;
};

/// A folder for timelines, which goes with it.
class TimelineFolder {
 public:
  TimelineFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "rows-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  TimelineFolder(const TimelineFolder&) = delete;
  TimelineFolder& operator=(const TimelineFolder&) = delete;
  ~TimelineFolder() { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  std::filesystem::path folder_;
};

}  // namespace lightcc::cuda::testing
