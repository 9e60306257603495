#include "errors.hpp"

#include <nanobind/nanobind.h>

#include <cerrno>
#include <string>

#include "gpufs/error.hpp"

namespace nb = nanobind;

namespace gpufs::python {
namespace {

// Paths are bytes; what is not UTF-8 in them survives as surrogates, as os.fsdecode does it.
nb::object decode(const std::string& bytes) {
  return nb::steal(PyUnicode_DecodeFSDefaultAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
}

// The exception's text without the path and the errno's text, which gpufs::error and std::system_error append.
std::string text_of(const error& e) {
  std::string text = e.what();
  for (const std::string& end : {e.code().message(), e.path()}) {
    const std::string suffix = ": " + end;
    if (text.size() > suffix.size() && text.ends_with(suffix)) text.resize(text.size() - suffix.size());
  }
  return text;
}

void raise(const error& e) {
  const int number = e.code().value();
  if (e.path().empty() && number == EINVAL) {
    PyErr_SetObject(PyExc_ValueError, decode(text_of(e)).ptr());
    return;
  }
  PyObject* arguments = nullptr;
  if (e.path().empty()) {
    arguments = Py_BuildValue("(iN)", number, decode(text_of(e)).release().ptr());
  } else {
    // "Invalid argument" says nothing of what is wrong in a file, and "No data available" not all.
    const std::string message = e.code().message();
    const std::string text = number == EINVAL ? text_of(e) : number == ENODATA ? text_of(e) + ": " + message : message;
    arguments = Py_BuildValue("(iNN)", number, decode(text).release().ptr(), decode(e.path()).release().ptr());
  }
  if (arguments == nullptr) return;  // the error of Py_BuildValue is set
  PyErr_SetObject(PyExc_OSError, arguments);
  Py_DECREF(arguments);
}

}  // namespace

void translate_errors() {
  nb::register_exception_translator([](const std::exception_ptr& exception, void*) {
    try {
      std::rethrow_exception(exception);
    } catch (const error& e) {
      raise(e);
    }
  });
}

}  // namespace gpufs::python
