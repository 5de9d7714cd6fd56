// The file in which a process publishes its counters, and which others map or read.
//
// "harp-PID-RANDOM.stat" in a folder such as /dev/shm, readable by its user alone. Whoever makes it
// first removes those of processes of the same user that have ended without doing so: a file that
// is in use is locked (flock), which the kernel ends with the process, and with its last fork. A
// file goes with its StatFile, or with the process where that ends in good order; the child of a
// fork has neither file nor duty.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "datapath/unique_fd.hpp"
#include "telemetry/stat_layout.hpp"

namespace harp {

class StatFile {
 public:
  /// Null, and `error` says what the system refused and where, if the folder takes no such file.
  /// `name`: random, so that files of one process do not meet.
  static std::unique_ptr<StatFile> create(const std::string& folder,
                                          std::uint64_t name,
                                          const StatLayout& layout,
                                          std::string* error);
  StatFile(const StatFile&) = delete;
  StatFile& operator=(const StatFile&) = delete;
  /// Removes the file. Nobody writes to its blocks any more.
  ~StatFile();

  /// The words of a block, for SeqWords; they live as long as this does. Memory is reserved here,
  /// so that writing cannot fail. Empty, and `error` says why, where there is none left.
  std::span<std::uint64_t> reserve_block(std::size_t index, std::string* error);

  const std::string& path() const { return path_; }

 private:
  /// What is removed when the process exits, if it still exists. Never freed: see stat_file.cpp.
  struct Removal;

  StatFile(std::string path, UniqueFd file, const StatLayout& layout);
  bool write_head(std::string* error);
  static Removal* remember(const std::string& path);
  static void remove(Removal& removal);
  static void remove_all();

  std::string path_;
  UniqueFd file_;
  StatLayout layout_;
  std::byte* memory_ = nullptr;
  Removal* removal_;

  static std::atomic<Removal*> removals;
};

/// Removes files of counters from `folder` that processes of this user left when they died. Returns
/// how many.
std::size_t remove_dead_stat_files(const std::string& folder);

}  // namespace harp
