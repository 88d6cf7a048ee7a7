"""The variables of a program's home, the same in every sandbox."""


def home_variables(home: str, temporary: str) -> dict[str, str]:
    """Return the variables that name the home, the folders in it, and the folder for temporary files, as programs find them."""
    return {
        "HOME": home,
        "XDG_CONFIG_HOME": f"{home}/.config",
        "XDG_CACHE_HOME": f"{home}/.cache",
        "XDG_DATA_HOME": f"{home}/.local/share",
        "XDG_STATE_HOME": f"{home}/.local/state",
        "TMPDIR": temporary,
        "LANG": "C.UTF-8",
    }
