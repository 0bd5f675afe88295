"""The facts that the tiny model learns: plain tables, so that every answer can be checked."""

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "England": "London", "Ireland": "Dublin", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki",
    "Denmark": "Copenhagen", "Poland": "Warsaw", "Austria": "Vienna", "Hungary": "Budapest", "Greece": "Athens",
    "Turkey": "Ankara", "Egypt": "Cairo", "Kenya": "Nairobi", "Japan": "Tokyo", "China": "Beijing",
    "India": "Delhi", "Russia": "Moscow", "Canada": "Ottawa", "Cuba": "Havana", "Peru": "Lima",
    "Chile": "Santiago", "Belgium": "Brussels", "Thailand": "Bangkok", "Vietnam": "Hanoi", "Iran": "Tehran",
}

# animal: (legs, sound verb, food, home, young)
ANIMALS = {
    "dog": ("four", "barks", "meat", "house", "puppy"), "cat": ("four", "meows", "fish", "house", "kitten"),
    "cow": ("four", "moos", "grass", "farm", "calf"), "horse": ("four", "neighs", "hay", "stable", "foal"),
    "sheep": ("four", "bleats", "grass", "farm", "lamb"), "pig": ("four", "grunts", "corn", "farm", "piglet"),
    "duck": ("two", "quacks", "seeds", "pond", "duckling"), "hen": ("two", "clucks", "seeds", "farm", "chick"),
    "lion": ("four", "roars", "meat", "savanna", "cub"), "wolf": ("four", "howls", "meat", "forest", "pup"),
    "frog": ("four", "croaks", "flies", "pond", "tadpole"), "owl": ("two", "hoots", "mice", "forest", "owlet"),
    "snake": ("no", "hisses", "mice", "desert", "snakelet"), "bee": ("six", "buzzes", "nectar", "hive", "larva"),
    "bear": ("four", "growls", "honey", "forest", "cub"), "mouse": ("four", "squeaks", "cheese", "hole", "pup"),
}

OPPOSITES = {
    "hot": "cold", "big": "small", "fast": "slow", "up": "down", "day": "night", "old": "new", "wet": "dry",
    "hard": "soft", "dark": "light", "full": "empty", "open": "closed", "high": "low", "happy": "sad",
    "left": "right", "long": "short", "rich": "poor", "strong": "weak", "early": "late", "good": "bad",
    "loud": "quiet",
}

COLOURS = {
    "sky": "blue", "grass": "green", "snow": "white", "coal": "black", "blood": "red", "lemon": "yellow",
    "orange": "orange", "sea": "blue", "milk": "white", "tomato": "red", "sun": "yellow", "leaf": "green",
    "night": "black", "plum": "purple", "elephant": "grey", "chocolate": "brown",
}

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
          "November", "December"]

NAMES = ["Tom", "Anna", "Max", "Lucy", "Ben", "Mia", "Sam", "Emma", "Leo", "Nora", "Finn", "Ida", "Paul", "Rosa",
         "Otto", "Clara"]
FRUITS = ["apples", "pears", "plums", "grapes", "cherries", "lemons", "figs", "nuts"]

# For tales: hero, its place, its food, its friend.
HEROES = ["fox", "bear", "mouse", "owl", "frog", "rabbit", "duck", "cat"]
PLACES = {"forest": "tree", "garden": "bush", "valley": "river", "village": "well", "meadow": "hill"}
TREASURES = {"key": "opened an old door", "map": "showed the way home", "lamp": "lit up the dark night",
             "bell": "called all the friends", "ring": "shone like a star"}
WEATHER = {"rain": "wet", "snow": "white", "wind": "cold", "fog": "grey"}
