"""Conan 2 recipe of the checkout it lies in: conan create cmake/conan --build=missing"""
import os

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy


class Moert(ConanFile):
    name = "moert"
    version = "0.2.0"
    license = "Apache-2.0"
    description = "Mixture-of-Experts models bigger than GPU memory, as a library"
    settings = "os", "arch", "compiler", "build_type"
    requires = "abseil/20230802.1", "fmt/10.1.1", "nlohmann_json/3.11.3"

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "..", "..")
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "lib/*", "kernels/*",
                        "capi/*"):
            copy(self, pattern, root, self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        toolchain.variables["MOERT_BUILD_TESTS"] = False
        toolchain.variables["MOERT_BUILD_EXAMPLES"] = False
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # The package's own CMake files know its components.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs.append(os.path.join("lib", "cmake", "moert"))
