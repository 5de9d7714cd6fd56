// What LIGHT_NET may name, and what is said of everything else; every version of the ABI.
#include "lightcc/transport/plugin/plugin_library.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include <gtest/gtest.h>

#include "transport/plugin_test_support.hpp"

namespace lightcc::plugin_library_test {
namespace {

using namespace plugin_test;  // NOLINT: the tests' own helpers

bool mentions(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

TEST(PluginLibraryTest, a_missing_file_is_named) {
  const Status status = find_plugin("/no/such/libnccl-net-x.so").status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(mentions(status, "/no/such/libnccl-net-x.so does not exist")) << status.message();
  EXPECT_TRUE(mentions(find_plugin("/tmp").status(), "is no file"));
}

TEST(PluginLibraryTest, harp_is_looked_for_in_its_folder_below_the_engines) {
  const auto found = find_plugin("harp");  // A test has the engine in itself.
  ASSERT_FALSE(found.ok());
  EXPECT_TRUE(mentions(found.status(), "/harp/plugin/libnccl-net-harp.so does not exist"));
  EXPECT_TRUE(mentions(found.status(), "built without HARP"));
}

TEST(PluginLibraryTest, a_file_that_is_no_library_or_no_plugin_says_what_was_looked_for) {
  Status status = PluginLibrary::load("/etc/passwd").status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(mentions(status, "/etc/passwd cannot be loaded")) << status.message();
  status = PluginLibrary::load("libm.so.6").status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(mentions(status, "is no NCCL net plugin")) << status.message();
  EXPECT_TRUE(mentions(status, "ncclNetPlugin_v12, ")) << status.message();
  EXPECT_TRUE(mentions(status, "ncclNetPlugin_v5")) << status.message();
}

TEST(PluginLibraryTest, harp_alone_can_be_moved_on_without_a_request) {
  for (const PluginUnderTest& plugin : kPlugins) {
    PluginLibrary* const library = must(PluginLibrary::load(plugin.path));
    ASSERT_NE(library, nullptr);
    const auto progress = library->table().progress();
    EXPECT_EQ(progress != nullptr, std::string(plugin.name) == "harp");
    if (progress != nullptr) {
      EXPECT_EQ(progress(nullptr), static_cast<int>(abi::Result::kInvalidArgument));
    }
  }
}

TEST(PluginLibraryTest, the_newest_version_is_taken_and_the_library_loaded_once) {
  for (const PluginUnderTest& plugin : kPlugins) {
    PluginLibrary* const library = must(PluginLibrary::load(plugin.path));
    ASSERT_NE(library, nullptr);
    EXPECT_EQ(library->table().version(), kNewestPluginVersion);
    EXPECT_EQ(must(PluginLibrary::load(plugin.path)), library);
  }
}

TEST(PluginLibraryTest, the_device_is_that_of_the_address_and_loopback_takes_any) {
  for (const PluginUnderTest& plugin : kPlugins) {
    PluginLibrary* const library = must(PluginLibrary::load(plugin.path));
    const auto context = must(PluginContext::open(*library, 1));
    const auto local =
        choose_plugin_device(*context, SocketAddress::resolve("127.0.0.1:0").value());
    ASSERT_TRUE(local.ok()) << local.status().message();
    EXPECT_EQ(local.value().device.name, "lo");
    const auto elsewhere =
        choose_plugin_device(*context, SocketAddress::resolve("192.0.2.1:0").value());
    ASSERT_FALSE(elsewhere.ok());
    EXPECT_EQ(elsewhere.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_TRUE(mentions(elsewhere.status(), "192.0.2.1")) << elsewhere.status().message();
    EXPECT_TRUE(mentions(elsewhere.status(), "it has: lo.")) << elsewhere.status().message();
  }
}

TEST(PluginLibraryTest, a_forked_process_is_told_that_it_has_no_plugin) {
  (void)must(PluginLibrary::load(LIGHTCC_TEST_HARP));
  const pid_t child = ::fork();
  if (child == 0) {
    const Status status = PluginLibrary::load(LIGHTCC_TEST_HARP).status();
    ::_exit(status.code() == ErrorCode::kUnimplemented && mentions(status, "forked") ? 0 : 1);
  }
  int how = 0;
  ASSERT_EQ(::waitpid(child, &how, 0), child);
  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

}  // namespace
}  // namespace lightcc::plugin_library_test
