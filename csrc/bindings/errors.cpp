// The one table from ErrorCode to Python class. The classes themselves live in
// lightcc/exceptions.py, which this file imports when the first error is raised, so that `_core`
// imports nothing at load.
#include "errors.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace py = pybind11;

namespace lightcc::bindings {
namespace {

struct ErrorClass {
  ErrorCode code;
  const char* module;
  const char* name;
};

constexpr const char* kOurs = "lightcc.exceptions";
constexpr std::array kErrorClasses{
    ErrorClass{ErrorCode::kInvalidArgument, "builtins", "ValueError"},
    ErrorClass{ErrorCode::kMismatch, kOurs, "RankMismatchError"},
    ErrorClass{ErrorCode::kPeerFailed, kOurs, "PeerFailedError"},
    ErrorClass{ErrorCode::kTimeout, kOurs, "CollectiveTimeoutError"},
    ErrorClass{ErrorCode::kShutDown, kOurs, "ShutDownError"},
    ErrorClass{ErrorCode::kSystem, kOurs, "EngineError"},
    ErrorClass{ErrorCode::kUnimplemented, "builtins", "NotImplementedError"},
    ErrorClass{ErrorCode::kInternal, kOurs, "EngineError"},
};

/// The table has one row for each code but kOk, in the order of the codes.
constexpr bool error_classes_are_total() {
  for (std::size_t i = 0; i < kErrorClasses.size(); ++i) {
    if (static_cast<std::size_t>(kErrorClasses[i].code) != i + 1) {
      return false;
    }
  }
  return kErrorClasses.size() == static_cast<std::size_t>(ErrorCode::kInternal);
}
static_assert(error_classes_are_total());

/// The exception object for one error. A number that is no error code is a bug of the caller; it
/// becomes an EngineError, so that nothing is ever lost.
py::object make_exception(std::uint8_t code, const std::string& message, int rank) {
  const bool known = code >= 1 && code <= kErrorClasses.size();
  const ErrorClass& row = known ? kErrorClasses[code - 1U] : kErrorClasses.back();
  const py::object type = py::module_::import(row.module).attr(row.name);
  // Messages may quote bytes of another origin (names, environment), so they are decoded leniently.
  const auto text = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
      message.data(), static_cast<py::ssize_t>(message.size()), "backslashreplace"));
  if (row.module != kOurs) {
    return type(text);
  }
  return type(text, rank < 0 ? py::object(py::none()) : py::object(py::int_(rank)));
}

py::list error_table() {
  py::list rows;
  for (const ErrorClass& row : kErrorClasses) {
    rows.append(py::make_tuple(static_cast<int>(row.code),
                               error_code_name(row.code),
                               py::module_::import(row.module).attr(row.name)));
  }
  return rows;
}

}  // namespace

void throw_status(const Status& status) {
  const py::object error =
      make_exception(static_cast<std::uint8_t>(status.code()), status.message(), status.rank());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

void register_errors(py::module_& module) {
  module.def("error_table",
             &error_table,
             "Returns (code, name, exception class) for every error code of the engine.");
  module.def("make_error",
             &make_exception,
             py::arg("code"),
             py::arg("message"),
             py::arg("rank") = -1,
             "Makes, without raising it, the exception of an engine error code.");
}

}  // namespace lightcc::bindings
