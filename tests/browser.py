"""Debian's chromium, driven by selenium; None and a reason where it cannot be had."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PROGRAMS = ("chromium", "chromedriver")


def install():
    """Install the browser where that is possible: as root on Debian. Return why there is none, or nothing."""
    if all(map(shutil.which, PROGRAMS)):
        return ""
    if os.environ.get("ESPALIER_BROWSER") == "none":
        return "ESPALIER_BROWSER=none"
    if not shutil.which("apt-get") or os.geteuid():
        return "no chromium and chromedriver here, and no apt-get or not root to install them"
    command = ["apt-get", "install", "--yes", "--quiet", "chromium", "chromium-driver"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return "apt-get install chromium took longer than five minutes"
    found = all(map(shutil.which, PROGRAMS))
    return "" if found else f"apt-get install chromium failed: {done.stderr.strip()[-200:]}"


@contextlib.contextmanager
def opened(width=1300, height=1500):
    """Give a browser with a new profile; it is closed at the end."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


def visit(driver, address, seconds=20.0):
    """Open a page; return the milliseconds until it was ready."""
    driver.get(address)
    return wait_for(driver, "return document.documentElement.dataset.ready", seconds)


def wait_for(driver, script, seconds=10.0):
    """Return what a script gives as soon as that is something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (found := driver.execute_script(script)) not in (None, "", False):
            return found
        time.sleep(0.02)
    raise TimeoutError(f"{script} gave nothing in {seconds} seconds")
