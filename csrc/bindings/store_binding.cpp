#include "store_binding.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <pybind11/stl.h>

#include "lightcc/net/socket_address.hpp"
#include "lightcc/rendezvous/tcp_store.hpp"

#include "errors.hpp"
#include "world_binding.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace lightcc::bindings {
namespace {

/// The rendezvous store of one job, served from this process.
class StoreServer {
 public:
  StoreServer(const std::string& bind_address, std::string secret) {
    auto server = [&]() -> Result<std::unique_ptr<TcpStoreServer>> {
      const py::gil_scoped_release nogil;
      LIGHTCC_ASSIGN_OR_RETURN(const SocketAddress address, SocketAddress::resolve(bind_address));
      return TcpStoreServer::start(address, std::move(secret));
    }();
    server_ = value_or_throw(std::move(server));
    address_ = server_->address().to_string();
  }
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  // pybind11 may throw where it creates its internals, which exist as long as this object does.
  // NOLINTNEXTLINE(bugprone-exception-escape)
  ~StoreServer() { stop(); }

  const std::string& address() const { return address_; }
  void stop() {
    const py::gil_scoped_release nogil;
    server_.reset();
  }

 private:
  std::unique_ptr<TcpStoreServer> server_;
  std::string address_;
};

Bytes to_bytes(const py::bytes& value) {
  const auto bytes = as_bytes(std::string_view(value));
  return {bytes.begin(), bytes.end()};
}

py::bytes from_bytes(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TimePoint after(double timeout_s) {
  constexpr double kLongestS = 1e9;
  const std::chrono::duration<double> wait(std::clamp(timeout_s, 0.0, kLongestS));
  return Clock::system().now() + std::chrono::duration_cast<Duration>(wait);
}

template <typename Call>
auto without_gil(Call call) {
  const py::gil_scoped_release nogil;
  return call();
}

/// A client of a store. Calls of several threads do not wait for one another.
class StoreClient {
 public:
  StoreClient(std::string address, std::string secret)
      : store_(make_tcp_store(std::move(address), std::move(secret))) {}

  void set(const std::string& key, const py::bytes& value, double timeout_s) {
    throw_if_error(without_gil([&, bytes = to_bytes(value)]() mutable {
      return store_->set(key, std::move(bytes), after(timeout_s));
    }));
  }

  py::bytes get(const std::string& key, double timeout_s) {
    return from_bytes(
        value_or_throw(without_gil([&] { return store_->get(key, after(timeout_s)); })));
  }

  std::optional<py::bytes> compare_and_set(const std::string& key,
                                           const std::optional<py::bytes>& expected,
                                           const py::bytes& desired,
                                           double timeout_s) {
    std::optional<Bytes> before;
    if (expected.has_value()) {
      before = to_bytes(*expected);
    }
    const auto now = value_or_throw(without_gil([&, bytes = to_bytes(desired)]() mutable {
      return store_->compare_and_set(key, std::move(before), std::move(bytes), after(timeout_s));
    }));
    return now.has_value() ? std::optional(from_bytes(*now)) : std::nullopt;
  }

  /// None when nothing has changed in time.
  py::object watch(const std::string& prefix, std::uint64_t known_state, double timeout_s) {
    auto view = without_gil([&] { return store_->watch(prefix, known_state, after(timeout_s)); });
    if (view.status().code() == ErrorCode::kTimeout) {
      return py::none();
    }
    const StoreView seen = value_or_throw(std::move(view));
    const py::dict entries;
    for (const auto& [key, value] : seen.entries) {
      entries[py::str(key)] = from_bytes(value);
    }
    return py::make_tuple(seen.state, entries);
  }

  void remove_prefix(const std::string& prefix, double timeout_s) {
    throw_if_error(without_gil([&] { return store_->remove_prefix(prefix, after(timeout_s)); }));
  }

  void fail(const std::string& prefix, const std::string& reason, double timeout_s) {
    const Status why(ErrorCode::kPeerFailed, reason);
    throw_if_error(without_gil([&] { return store_->fail(prefix, why, after(timeout_s)); }));
  }

  void close() { store_->close(); }

 private:
  const std::unique_ptr<TcpStoreClient> store_;
};

}  // namespace

void register_store(const py::module_& module) {
  py::class_<StoreServer>(module,
                          "StoreServer",
                          plain_type(),
                          "Serves the store through which the ranks of a job find each other.")
      .def(py::init<const std::string&, std::string>(), "bind_address"_a, "secret"_a)
      .def_property_readonly("address", &StoreServer::address)
      .def("stop", &StoreServer::stop)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](StoreServer& server, const py::args&) { server.stop(); });
  py::class_<StoreClient>(module, "StoreClient", plain_type(), "A client of a job's store.")
      .def(py::init<std::string, std::string>(), "address"_a, "secret"_a)
      .def("set", &StoreClient::set, "key"_a, "value"_a, "timeout_s"_a)
      .def("get", &StoreClient::get, "key"_a, "timeout_s"_a)
      .def("compare_and_set",
           &StoreClient::compare_and_set,
           "key"_a,
           "expected"_a,
           "desired"_a,
           "timeout_s"_a)
      .def("watch", &StoreClient::watch, "prefix"_a, "known_state"_a, "timeout_s"_a)
      .def("remove_prefix", &StoreClient::remove_prefix, "prefix"_a, "timeout_s"_a)
      .def("fail", &StoreClient::fail, "prefix"_a, "reason"_a, "timeout_s"_a)
      .def("close", &StoreClient::close);
}

}  // namespace lightcc::bindings
