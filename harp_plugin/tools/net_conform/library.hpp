// The plugin's shared library, and the driver for one version of it.
#pragma once

#include <memory>
#include <string>

#include "driver.hpp"

namespace net_conform {

class Library {
 public:
  Library(std::string path, int version) : path_(std::move(path)), version_(version) {}
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() { unload(); }

  /// dlopen and the look-up of the table. Empty, or what is wrong.
  std::string load();
  void unload();
  Driver& driver() { return *driver_; }

 private:
  std::string path_;
  int version_;
  void* handle_ = nullptr;
  std::unique_ptr<Driver> driver_;
};

}  // namespace net_conform
