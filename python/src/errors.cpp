#include "errors.hpp"

#include <nanobind/nanobind.h>

#include <cerrno>
#include <exception>
#include <string>

#include "gpufs/error.hpp"

namespace nb = nanobind;

namespace gpufs::python {
namespace {

// Decodes a path. Bytes that are not UTF-8 become surrogates, as with os.fsdecode.
nb::object decode(const std::string& bytes) {
  return nb::steal(
      PyUnicode_DecodeFSDefaultAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
}

// Returns the exception's text without the path and the errno's text, which gpufs::error and
// std::system_error append.
std::string text_of(const error& e) {
  std::string text = e.what();
  for (const std::string& end : {e.code().message(), gpufs::detail::printable(e.path())}) {
    const std::string suffix = ": " + end;
    if (text.size() > suffix.size() && text.ends_with(suffix))
      text.resize(text.size() - suffix.size());
  }
  return text;
}

// Returns the text of the nested exception, or an empty string.
std::string nested_text(const error& e) {
  const auto* const nested = dynamic_cast<const std::nested_exception*>(&e);
  if (nested == nullptr || nested->nested_ptr() == nullptr) return {};
  try {
    nested->rethrow_nested();
  } catch (const error& before) {
    return "; before that: " + text_of(before) + ": " + before.code().message() +
           nested_text(before);
  } catch (const std::exception& before) {
    return std::string("; before that: ") + before.what();
  } catch (...) {
    return {};
  }
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
    // The errno's text does not say enough: "Invalid argument" does not name what is wrong in a
    // file, and "No data available" is incomplete.
    const std::string message = e.code().message();
    const std::string text = number == EINVAL    ? text_of(e)
                             : number == ENODATA ? text_of(e) + ": " + message
                                                 : message;
    arguments = Py_BuildValue("(iNN)", number, decode(text + nested_text(e)).release().ptr(),
                              decode(e.path()).release().ptr());
  }
  if (arguments == nullptr) return;  // Py_BuildValue has set an error
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
